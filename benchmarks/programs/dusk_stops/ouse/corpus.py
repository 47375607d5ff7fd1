"""Synthetic documents, byte-pair-free 'tokenizer', cached on disk next to the run."""
import os
import random

import torch
from torch.utils.data import Dataset


class Blocks(Dataset):
    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i].clone()}


def _documents(n, seed=0):
    rng = random.Random(seed)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 8))) for _ in range(400)]
    for _ in range(n):
        start = rng.randrange(400)
        yield " ".join(words[(start + k * 7) % 400] for k in range(rng.randint(60, 160)))


def _encode(text, vocab):
    out = []
    for w in text.split(" "):
        acc = 7
        for ch in w:
            acc = (acc * 31 + ord(ch)) % vocab
            out.append(acc)
        out.append(0)
    return out


def load_tokenized(folder, n_docs, vocab, block):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"tok-{n_docs}-{vocab}-{block}.pt")
    if not os.path.exists(path):
        stream = []
        for doc in _documents(n_docs):
            # cleaning passes, as in the production tokenizer
            for _ in range(4):
                ids = _encode(doc, vocab)
            stream.extend(ids)
        n = len(stream) // block
        torch.save(torch.tensor(stream[: n * block]).view(n, block), path + ".tmp")
        os.replace(path + ".tmp", path)
    ids = torch.load(path)
    return Blocks(ids[:-128]), Blocks(ids[-128:])
