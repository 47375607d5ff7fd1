import torch
import torch.nn as nn


class RankingModel(nn.Module):
    """Wide lookup tables next to a dense tower. The tables produce sparse gradients."""

    def __init__(self, users, items, dim=32, content=48):
        super().__init__()
        self.embedding = nn.ModuleDict(
            {
                "user": nn.Embedding(users, dim, sparse=True),
                "item": nn.Embedding(items, dim, sparse=True),
            }
        )
        for table in self.embedding.values():
            nn.init.normal_(table.weight, std=0.05)
        self.embedding_adapter = nn.Sequential(nn.Linear(content, 64), nn.ReLU(), nn.Linear(64, dim))
        self.cross = nn.Linear(3 * dim, 3 * dim)
        self.tower = nn.Sequential(nn.Linear(3 * dim, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user, item, content):
        x0 = torch.cat([self.embedding["user"](user), self.embedding["item"](item), self.embedding_adapter(content)], -1)
        return self.tower(x0 * self.cross(x0) + x0).squeeze(-1)
