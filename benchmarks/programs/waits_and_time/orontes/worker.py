import torch
import torch.distributed as dist
from torch import nn


class Worker:
    def __init__(self, args, rank, world):
        self.args, self.rank, self.world = args, rank, world
        torch.manual_seed(args.seed)
        self.model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.velocity = [torch.zeros_like(p) for p in self.model.parameters()]
        self.loss = nn.BCEWithLogitsLoss()
        self.seen = 0

    def _batches(self, chosen, phase):
        x = torch.tensor([p.features for p in chosen])
        y = torch.tensor([[p.label] for p in chosen])
        g = torch.Generator().manual_seed(self.args.seed * 10 + phase)
        for _ in range(self.args.steps):
            idx = torch.randint(0, len(chosen), (self.args.batch,), generator=g)
            yield x[idx], y[idx]

    @torch.no_grad()
    def _update(self):
        for p, v in zip(self.model.parameters(), self.velocity):
            dist.all_reduce(p.grad)
            v.mul_(0.9).add_(p.grad / self.world)
            p -= self.args.lr * v
            p.grad = None

    def train(self, chosen, phase):
        total = 0.0
        for x, y in self._batches(chosen, phase):
            loss = self.loss(self.model(x), y)
            loss.backward()
            self._update()
            total += loss.item()
            self.seen += len(y)
        return total / self.args.steps

    def summary(self):
        norm = sum(float((p.detach() ** 2).sum()) for p in self.model.parameters()) ** 0.5
        return {"rank": self.rank, "seen": self.seen, "norm": round(norm, 5)}
