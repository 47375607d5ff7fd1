"""A ring-of-communities graph cut into one part per rank, with the boundary lists for the neighbours."""
from dataclasses import dataclass, field

import torch


@dataclass
class Part:
    features: torch.Tensor
    labels: torch.Tensor
    adj: torch.Tensor
    send_ids: dict = field(default_factory=dict)
    halo_slots: dict = field(default_factory=dict)
    train_mask: torch.Tensor = None


def build_parts(world, nodes_per_part=90, dim=16, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    n = nodes_per_part * world
    labels = torch.randint(0, classes, (n,), generator=g)
    proto = torch.randn(classes, dim, generator=g)
    x = proto[labels] + 1.5 * torch.randn(n, dim, generator=g)
    same = labels[:, None] == labels[None]
    prob = torch.where(same, 0.06, 0.01)
    a = (torch.rand(n, n, generator=g) < prob).float().triu(1)
    a = a + a.t() + torch.eye(n)
    a = a / a.sum(1, keepdim=True)
    owner = torch.arange(n) // nodes_per_part
    parts = []
    for r in range(world):
        mine = (owner == r).nonzero().flatten()
        cols, part_halo, at = [mine], {}, len(mine)
        for q in range(world):
            theirs = (owner == q).nonzero().flatten()
            if q == r:
                continue
            need = theirs[(a[mine][:, theirs] > 0).any(0)]
            part_halo[q] = (need, slice(at, at + len(need)))
            cols.append(need)
            at += len(need)
        mask = torch.rand(len(mine), generator=g) < 0.6
        parts.append((mine, cols, part_halo, mask))
    out = []
    for r, (mine, cols, halo, mask) in enumerate(parts):
        out.append(Part(x[mine], labels[mine], a[mine][:, torch.cat(cols)],
                        {q: parts[q][2][r][0] - mine[0] for q in halo},
                        {q: s for q, (_, s) in halo.items()}, mask))
    return out
