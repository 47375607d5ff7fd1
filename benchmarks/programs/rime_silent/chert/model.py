import torch
import torch.nn as nn


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, h, ignore):
        s = self.score(h).squeeze(-1)
        s = s.masked_fill(ignore, float("-inf"))
        return (s.softmax(-1).unsqueeze(-1) * h).sum(1)


class Conversion(nn.Module):
    def __init__(self, vocab=60, dim=48):
        super().__init__()
        self.events = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.pool = AttentionPool(dim)
        self.clf = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, ids, ignore):
        h, _ = self.mix(self.events(ids))
        return self.clf(self.pool(h, ignore)).squeeze(-1)
