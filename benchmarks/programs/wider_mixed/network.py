import torch
from torch import nn


class LoRAModule(nn.Module):
    def __init__(self, org, rank=4, alpha=4.0):
        super().__init__()
        self.down = nn.Linear(org.in_features, rank, bias=False)
        self.up = nn.Linear(rank, org.out_features, bias=False)
        nn.init.kaiming_uniform_(self.down.weight, a=5 ** 0.5)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank
        self.org = [org]

    def apply_to(self):
        self.org_forward = self.org[0].forward
        self.org[0].forward = self.forward
        del self.org

    def forward(self, x):
        return self.org_forward(x) + self.up(self.down(x)) * self.scale


class LoRANetwork(nn.Module):
    def __init__(self, target):
        super().__init__()
        linears = [(n, m) for n, m in target.named_modules() if isinstance(m, nn.Linear)]
        self.loras = nn.ModuleDict({n.replace(".", "_"): LoRAModule(m) for n, m in linears})

    def apply_to(self):
        for m in self.loras.values():
            m.apply_to()

    def forward(self, *args):
        raise NotImplementedError


class Denoiser(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.inp = nn.Linear(12, dim)
        self.mid = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))
        self.out = nn.Linear(dim, 12)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)
        return self.out(h + self.mid(h))
