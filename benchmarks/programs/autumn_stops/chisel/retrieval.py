import time

import torch
from torch import nn


class DualEncoder(nn.Module):
    def __init__(self, dim, emb):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, emb))
        self.doc = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, emb))

    def forward(self, q, d):
        q = nn.functional.normalize(self.query(q), dim=1)
        d = nn.functional.normalize(self.doc(d), dim=1)
        return nn.functional.cross_entropy(q @ d.T / 0.1, torch.arange(len(q)))


def pairs(n, dim, seed):
    gen = torch.Generator().manual_seed(seed)
    base = torch.randn(n, dim, generator=gen)
    return base + 0.4 * torch.randn(n, dim, generator=gen), base + 0.4 * torch.randn(n, dim, generator=gen)


@torch.no_grad()
def recall_at_k(model, corpus_size, dim, k, budget):
    """Exact search over a held-out corpus, in blocks; `budget` bounds the time spent."""
    q, d = pairs(corpus_size, dim, seed=321)
    docs = nn.functional.normalize(model.doc(d), dim=1)
    hits = seen = 0
    deadline = time.monotonic() + budget
    while time.monotonic() < deadline:
        rows = torch.randint(0, corpus_size, (64,))
        scores = nn.functional.normalize(model.query(q[rows]), dim=1) @ docs.T
        top = scores.topk(k, dim=1).indices
        hits += int((top == rows[:, None]).any(dim=1).sum())
        seen += len(rows)
    return hits / seen
