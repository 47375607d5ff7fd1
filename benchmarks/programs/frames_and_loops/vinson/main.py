import argparse
import contextlib
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

logger = logging.getLogger("mtl")


@dataclass
class TaskSpec:
    name: str
    kind: str
    outputs: int
    weight: float


TASKS = [
    TaskSpec("depth", "regress", 3, 1.0),
    TaskSpec("segment", "classify", 6, 0.7),
    TaskSpec("normal", "regress", 2, 0.5),
]


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=30)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--accum", type=int, default=len(TASKS))
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--clip", type=float, default=2.0)
    p.add_argument("--eval-every", type=int, default=10)
    p.add_argument("--seed", type=int, default=29)
    return p.parse_args()


class TaskStream:
    """Endless, per-rank stream of one task; all ranks draw from disjoint noise."""

    def __init__(self, spec, dim, seed, rank):
        g = torch.Generator().manual_seed(seed)
        self.spec = spec
        self.w = torch.randn(dim, spec.outputs, generator=g) / dim ** 0.5
        self.shift = torch.randn(dim, generator=g) * 0.2
        self.g = torch.Generator().manual_seed(seed * 101 + rank)
        self.dim = dim

    def draw(self, n):
        x = torch.randn(n, self.dim, generator=self.g) + self.shift
        z = x @ self.w
        if self.spec.kind == "classify":
            return x, z.argmax(1)
        return x, torch.sin(z) + 0.05 * torch.randn(n, self.spec.outputs, generator=self.g)


class Backbone(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.stem = nn.Linear(dim, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        h = F.gelu(self.stem(x))
        for lin, norm in zip(self.layers, self.norms):
            h = h + F.gelu(lin(norm(h)))
        return h


class MultiTaskNet(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.backbone = Backbone(dim, width)
        self.heads = nn.ModuleDict(
            {t.name: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, t.outputs)) for t in TASKS}
        )

    def forward(self, x, task):
        return self.heads[task](self.backbone(x))


def task_loss(spec, out, y):
    if spec.kind == "classify":
        return spec.weight * F.cross_entropy(out, y)
    return spec.weight * F.smooth_l1_loss(out, y)


class Runner:
    def __init__(self, opt):
        self.o = opt
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(opt.seed)
        self.dim = 16
        net = MultiTaskNet(self.dim, opt.width)
        self.model = DDP(net, find_unused_parameters=True)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=opt.lr)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.optim, lambda s: min(1.0, (s + 1) / opt.warmup))
        self.streams = [TaskStream(t, self.dim, opt.seed + i, self.rank) for i, t in enumerate(TASKS)]
        self.eval_sets = [TaskStream(t, self.dim, opt.seed + i, 9000 + self.rank).draw(60)
                          for i, t in enumerate(TASKS)]

    def micro_batches(self, update):
        for k in range(self.o.accum):
            i = (update + k) % len(TASKS)
            yield k, TASKS[i], self.streams[i].draw(self.o.batch)

    def update(self, u):
        self.optim.zero_grad(set_to_none=True)
        losses = {}
        for k, spec, (x, y) in self.micro_batches(u):
            last = k == self.o.accum - 1
            ctx = contextlib.nullcontext() if last else self.model.no_sync()
            with ctx:
                loss = task_loss(spec, self.model(x, spec.name), y) / self.o.accum
                loss.backward()
            losses[spec.name] = loss.item() * self.o.accum
        nn.utils.clip_grad_norm_(self.model.parameters(), self.o.clip)
        self.optim.step()
        self.sched.step()
        return losses

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        vals = []
        for spec, (x, y) in zip(TASKS, self.eval_sets):
            vals.append(task_loss(spec, self.model.module(x, spec.name), y))
        t = torch.stack(vals)
        dist.all_reduce(t)
        self.model.train()
        return (t / self.world).tolist()

    def fit(self):
        for u in range(self.o.updates):
            losses = self.update(u)
            if u % 5 == 0:
                logger.info("update %d %s", u, {k: round(v, 4) for k, v in losses.items()})
            if (u + 1) % self.o.eval_every == 0:
                logger.info("eval %s", [round(v, 4) for v in self.evaluate()])


def main():
    opt = options()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    Runner(opt).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
