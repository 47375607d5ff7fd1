import torch
import torch.nn as nn


class TwoTower(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user = nn.Embedding(users, dim, sparse=True)
        self.item = nn.EmbeddingBag(items, dim, mode="mean", sparse=True)
        self.uh = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, dim))
        self.ih = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, user, item):
        u = self.uh(self.user(user))
        i = self.ih(self.item(item[:, None]))
        return (u * i).sum(-1)

    def tables(self):
        return [self.user.weight, self.item.weight]

    def dense(self):
        return list(self.uh.parameters()) + list(self.ih.parameters())
