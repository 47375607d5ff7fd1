import torch
import torch.distributed as dist
from torch import nn


class ShardedMomentum:
    """SGD with momentum; each rank keeps the momentum of its slice of the flat parameters."""

    def __init__(self, params, lr, momentum, rank, world):
        self.params = list(params)
        self.lr, self.momentum = lr, momentum
        self.rank, self.world = rank, world
        n = sum(p.numel() for p in self.params)
        self.chunk = (n + world - 1) // world
        self.padded = self.chunk * world
        self.buf = torch.zeros(self.chunk)

    def _flat(self, tensors):
        flat = torch.zeros(self.padded)
        at = 0
        for t in tensors:
            flat[at:at + t.numel()] = t.detach().reshape(-1)
            at += t.numel()
        return flat

    @torch.no_grad()
    def step(self):
        grad = self._flat([p.grad for p in self.params])
        dist.all_reduce(grad)
        grad /= self.world
        mine = slice(self.rank * self.chunk, (self.rank + 1) * self.chunk)
        self.buf.mul_(self.momentum).add_(grad[mine])
        piece = self._flat(self.params)[mine] - self.lr * self.buf
        pieces = [torch.empty(self.chunk) for _ in range(self.world)]
        dist.all_gather(pieces, piece)
        flat, at = torch.cat(pieces), 0
        for p in self.params:
            p.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()


class Engine:
    def __init__(self, opt, features, rank, world):
        self.opt, self.rank, self.world = opt, rank, world
        self.model = nn.Sequential(
            nn.Linear(features, opt.hidden), nn.Tanh(), nn.Linear(opt.hidden, opt.hidden), nn.Tanh(), nn.Linear(opt.hidden, 1)
        )
        self.optim = ShardedMomentum(self.model.parameters(), opt.lr, opt.momentum, rank, world)
        self.loss = nn.MSELoss()

    def train_epoch(self, split, epoch):
        x, y = split
        g = torch.Generator().manual_seed(self.opt.seed + epoch)
        order = torch.randperm(len(x), generator=g)
        total = 0.0
        steps = len(x) // self.opt.batch
        for i in range(steps):
            idx = order[i * self.opt.batch:(i + 1) * self.opt.batch]
            self.model.zero_grad()
            loss = self.loss(self.model(x[idx]), y[idx])
            loss.backward()
            self.optim.step()
            total += loss.item()
        return total / steps

    @torch.no_grad()
    def validate(self, split):
        x, y = split
        self.model.eval()
        stats = torch.tensor([((self.model(x) - y) ** 2).sum().item(), float(len(x))])
        self.model.train()
        dist.reduce(stats, dst=0, op=dist.ReduceOp.SUM)
        return (stats[0] / stats[1]).item()
