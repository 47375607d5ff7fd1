"""Countdown corpus: ``<n> : n n-1 ... 1 EOS``."""
import torch
from torch.utils.data import Dataset

PAD, EOS, SEP = 0, 1, 2
BASE = 3
MAX_N = 12
VOCAB = BASE + MAX_N + 1


def render(n: int) -> list[int]:
    return [BASE + n, SEP] + [BASE + k for k in range(n, 0, -1)] + [EOS]


class Countdown(Dataset):
    def __init__(self, size: int, seed: int, max_len: int = MAX_N + 4):
        g = torch.Generator().manual_seed(seed)
        self.ns = torch.randint(1, MAX_N + 1, (size,), generator=g).tolist()
        self.max_len = max_len

    def __len__(self):
        return len(self.ns)

    def __getitem__(self, i):
        row = render(self.ns[i])
        row = row + [PAD] * (self.max_len - len(row))
        return torch.tensor(row)


def prompt_batch(ns: list[int]) -> torch.Tensor:
    return torch.tensor([[BASE + n, SEP] for n in ns])


def exact_match(row: torch.Tensor, n: int) -> bool:
    want = render(n)[2:]
    return row[: len(want)].tolist() == want
