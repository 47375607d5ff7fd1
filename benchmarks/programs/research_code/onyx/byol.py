import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_encoder(dim):
    return nn.Sequential(nn.Conv1d(1, 16, 7, 3, 3), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv1d(16, 32, 5, 2, 2),
                         nn.GroupNorm(4, 32), nn.SiLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, dim))


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.LayerNorm(h), nn.ReLU(), nn.Linear(h, o))


class BYOL(nn.Module):
    def __init__(self, dim, proj=32, hidden=96):
        super().__init__()
        self.online = make_encoder(dim)
        self.projector = mlp(dim, hidden, proj)
        self.predictor = mlp(proj, hidden, proj)
        self.target = copy.deepcopy(nn.ModuleList([self.online, self.projector])).requires_grad_(False)

    @torch.no_grad()
    def reset_target(self):
        self.update_target(0.0)

    @torch.no_grad()
    def update_target(self, tau):
        src = list(self.online.parameters()) + list(self.projector.parameters())
        for t, s in zip(self.target.parameters(), src):
            t.lerp_(s, 1 - tau)

    def forward(self, a, b):
        p = self.predictor(self.projector(self.online(torch.cat([a, b]))))
        with torch.no_grad():
            z = self.target[1](self.target[0](torch.cat([b, a])))
        return 2 - 2 * F.cosine_similarity(p, z, dim=-1).mean()


class Classifier(nn.Module):
    def __init__(self, encoder, dim, classes):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Dropout(0.1), nn.Linear(dim, classes))

    def forward(self, x):
        return self.head(self.encoder(x))
