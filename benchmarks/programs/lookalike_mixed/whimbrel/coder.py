import torch
import torch.nn as nn


class Coder(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, k))
        self.dec = nn.Sequential(nn.Linear(k, 32), nn.ReLU(), nn.Linear(32, d))

    def forward(self, x):
        return self.dec(self.enc(x))

    def objective(self, x):
        code = self.enc(x)
        return (self.dec(code) - x).square().mean() + 1e-3 * code.square().mean()
