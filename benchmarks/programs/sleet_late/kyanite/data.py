import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence


def load_documents(n=320, seed=42):
    """Token documents, kept sorted by length so that a batch needs little padding."""
    g = np.random.default_rng(seed)
    lengths = np.clip(g.lognormal(mean=4.2, sigma=0.9, size=n), 8, 400).astype(int)
    docs = []
    for ln in sorted(lengths.tolist()):
        start, stride = g.integers(0, 64), g.integers(1, 5)
        docs.append(torch.tensor((start + stride * np.arange(ln + 1)) % 64))
    return docs


def rank_part(docs, rank, world):
    per = len(docs) // world
    return docs[rank * per:(rank + 1) * per]


def batches(docs, size, generator):
    blocks = [docs[i:i + size] for i in range(0, len(docs) - size + 1, size)]
    for j in torch.randperm(len(blocks), generator=generator).tolist():
        padded = pad_sequence(blocks[j], batch_first=True, padding_value=-1)
        yield padded[:, :-1].clamp(min=0), padded[:, 1:]
