import torch
import torch.nn as nn


class TwoTowerRanker(nn.Module):
    """Embeddings of user, item and context followed by an interaction MLP."""

    def __init__(self, users, items, contexts, dim=32, hidden=(256, 256, 128)):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        self.context = nn.Embedding(contexts, dim)
        for table in (self.user, self.item, self.context):
            nn.init.normal_(table.weight, std=0.1)
        sizes = (4 * dim,) + hidden
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, user, item, context):
        u, i, c = self.user(user), self.item(item), self.context(context)
        return self.mlp(torch.cat([u, i, c, u * i], dim=-1)).squeeze(-1)


class Interactions:
    """Clicks from a low-rank preference model with skewed item popularity."""

    def __init__(self, users, items, contexts, batch_size, rank, seed):
        g = torch.Generator().manual_seed(seed)
        self.pu = torch.randn(users, 6, generator=g)
        self.pi = torch.randn(items, 6, generator=g)
        self.bias = torch.randn(contexts, generator=g) * 0.5
        self.popularity = 1.0 / torch.arange(1, items + 1).float()
        self.gen = torch.Generator().manual_seed(seed + 1 + rank)
        self.batch_size = batch_size

    def next(self):
        u = torch.randint(0, len(self.pu), (self.batch_size,), generator=self.gen)
        i = torch.multinomial(self.popularity, self.batch_size, replacement=True, generator=self.gen)
        c = torch.randint(0, len(self.bias), (self.batch_size,), generator=self.gen)
        logit = (self.pu[u] * self.pi[i]).sum(-1) + self.bias[c]
        y = (torch.rand(self.batch_size, generator=self.gen) < torch.sigmoid(logit)).float()
        return u, i, c, y
