from collections import deque

import torch
import torch.distributed as dist


def simulate(g, batch, points):
    """Damped oscillations with random frequency and damping."""
    f = torch.rand(batch, 1, generator=g) * 4 + 1
    d = torch.rand(batch, 1, generator=g) * 2
    t = torch.linspace(0, 2, points)[None]
    x = torch.exp(-d * t) * torch.sin(6.283 * f * t) + 0.05 * torch.randn(batch, points, generator=g)
    return torch.cat([x, f / 5, d / 2], -1)


def serve(args, workers, ahead=4):
    g = torch.Generator().manual_seed(args.seed)
    pending = deque()
    for _ in range(args.steps):
        for w in workers:
            data = simulate(g, args.batch, args.points)
            pending.append((dist.isend(data, w), data))
        while len(pending) > ahead:
            pending.popleft()[0].wait()
    for work, _ in pending:
        work.wait()
