import torch
import torch.nn as nn
import torch.nn.functional as F


class Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, dim)

    def forward(self, x):
        h = self.norm(x)
        return x + self.fc(h) * torch.sigmoid(self.gate(h))


class DynamicsModel(nn.Module):
    """Predicts the next state of a system from the present one."""

    def __init__(self, dim=192, depth=6):
        super().__init__()
        self.inp = nn.Linear(dim, dim)
        self.layers = nn.ModuleList(Mixer(dim) for _ in range(depth))
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        h = F.gelu(self.inp(x))
        for layer in self.layers:
            h = layer(h)
        return self.out(h)

    def configure_optimizers(self, lr, betas, weight_decay):
        decay, no_decay = set(), set()
        for mn, m in self.named_modules():
            for pn, _ in m.named_parameters(recurse=False):
                name = f"{mn}.{pn}" if mn else pn
                if pn.endswith("weight") and isinstance(m, nn.Linear):
                    decay.add(name)
                else:
                    no_decay.add(name)
        params = dict(self.named_parameters())
        assert not (decay & no_decay)
        assert params.keys() == (decay | no_decay)
        groups = [
            {"params": [params[n] for n in sorted(decay)], "weight_decay": weight_decay},
            {"params": [params[n] for n in sorted(no_decay)], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=betas)
