import torch
from torch.utils.data import TensorDataset


def make_table(rows, features, seed, noise=0.6):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=g)
    w = torch.randn(features, generator=torch.Generator().manual_seed(11)) / features ** 0.5
    y = torch.tanh(x @ w) + 0.3 * x[:, 0] * x[:, 1]
    y = y + noise * torch.randn(rows, generator=g)
    return TensorDataset(x, y.unsqueeze(1))


def build(train_rows=3072, val_rows=768, features=40):
    return make_table(train_rows, features, seed=1), make_table(val_rows, features, seed=2)
