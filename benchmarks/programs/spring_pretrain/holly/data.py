import numpy as np
import torch
from torch.utils.data import Dataset


class PackedDocs(Dataset):
    """Row i: documents of random length packed to exactly `total` tokens."""

    def __init__(self, rows, total, vocab, max_doc, seed):
        self.rows, self.total, self.vocab, self.max_doc, self.seed = rows, total, vocab, max_doc, seed

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        rng = np.random.default_rng((self.seed, i))
        cu, toks, pos = [0], [], []
        while cu[-1] < self.total:
            n = min(int(rng.integers(24, self.max_doc)), self.total - cu[-1])
            start, stride = rng.integers(0, self.vocab), rng.integers(1, 5)
            toks.append((start + stride * np.arange(n)) % self.vocab)
            pos.append(np.arange(n))
            cu.append(cu[-1] + n)
        tokens = torch.from_numpy(np.concatenate(toks))
        labels = tokens.roll(-1)
        labels[torch.tensor(cu[1:]) - 1] = -100
        return {"tokens": tokens, "labels": labels, "positions": torch.from_numpy(np.concatenate(pos)),
                "cu_seqlens": tuple(cu)}


def collate(rows):
    row, = rows
    return {k: v.unsqueeze(0) if torch.is_tensor(v) else v for k, v in row.items()}
