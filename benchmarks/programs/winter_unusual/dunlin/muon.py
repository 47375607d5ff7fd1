import torch
import torch.distributed as dist


def orthogonalise(g, steps=5):
    """Quintic Newton-Schulz iteration towards U V^T."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.shape[0] > x.shape[1]
    if flip:
        x = x.T
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if flip else x


class DistributedMuon:
    """Matrices of one shape are dealt out in turns of `world`: every rank reduces only its own gradient and momentum,
    orthogonalises it, and the updates of the turn come back with one all_gather."""

    def __init__(self, params, lr=0.02, momentum=0.95):
        self.lr, self.momentum = lr, momentum
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        by_shape = {}
        for p in params:
            by_shape.setdefault(tuple(p.shape), []).append(p)
        self.turns = []
        for shape, ps in by_shape.items():
            for i in range(0, len(ps), self.world):
                turn = ps[i : i + self.world]
                buf = torch.zeros(shape) if self.rank < len(turn) else None
                self.turns.append((shape, turn, buf))

    @torch.no_grad()
    def step(self):
        for shape, turn, buf in self.turns:
            grads = torch.zeros(self.world, *shape)
            for i, p in enumerate(turn):
                grads[i] = p.grad
            mine = torch.empty(shape)
            dist.reduce_scatter_tensor(mine.view(-1), grads.view(-1))
            mine /= self.world
            update = torch.zeros(shape)
            if buf is not None:
                buf.mul_(self.momentum).add_(mine)
                update = orthogonalise(mine + self.momentum * buf) * max(1.0, shape[0] / shape[1]) ** 0.5
            out = torch.empty(self.world, *shape)
            dist.all_gather_into_tensor(out.view(-1), update.contiguous().view(-1))
            for i, p in enumerate(turn):
                p.sub_(out[i], alpha=self.lr)
                p.grad = None

    def scale_lr(self, f, base):
        self.lr = base * f
