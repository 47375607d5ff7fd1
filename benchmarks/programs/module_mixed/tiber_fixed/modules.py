import torch
import torch.distributed as dist
import torch.nn as nn

import parallel_state as ps


class RolePart(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, d), nn.Tanh())

    def forward(self, x):
        return x + self.net(x)


class Composite(nn.Module):
    """Each rank holds the parts of its roles; the trunk is on all ranks."""

    def __init__(self, d=24):
        super().__init__()
        self.trunk = nn.Linear(10, d)
        self.parts = nn.ModuleDict({r: RolePart(d) for r in sorted(ps.LAYOUT)})
        for name in list(self.parts):
            if not ps.holds(name):
                del self.parts[name]
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        for name in sorted(self.parts):
            h = self.parts[name](h)
        return self.head(h)


@torch.no_grad()
def reduce_gradients(model):
    world = dist.get_world_size()
    for p in (*model.trunk.parameters(), *model.head.parameters()):
        dist.all_reduce(p.grad)
        p.grad /= world
    for name in sorted(model.parts):
        n = len(ps.members(name))
        for p in model.parts[name].parameters():
            dist.all_reduce(p.grad, group=ps.group(name))
            p.grad /= n


@torch.no_grad()
def broadcast_parts(model):
    for p in (*model.trunk.parameters(), *model.head.parameters()):
        dist.broadcast(p.data, 0)
    for name in sorted(model.parts):
        for p in model.parts[name].parameters():
            dist.broadcast(p.data, ps.members(name)[0], group=ps.group(name))
