import argparse
import logging
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("pcgrad")
TASKS = ("price", "demand", "churn")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=25)
    p.add_argument("--rows", type=int, default=900)
    p.add_argument("--dim", type=int, default=18)
    p.add_argument("--width", type=int, default=56)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=41)
    return p.parse_args()


class SharedNet(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(a.dim, a.width), nn.LayerNorm(a.width), nn.ReLU(),
                                  nn.Linear(a.width, a.width), nn.LayerNorm(a.width), nn.ReLU())
        self.heads = nn.ModuleDict({t: nn.Linear(a.width, 1) for t in TASKS})

    def forward(self, x):
        h = self.body(x)
        return {t: head(h).squeeze(-1) for t, head in self.heads.items()}


def rows(a):
    g = torch.Generator().manual_seed(a.seed)
    x = torch.randn(a.rows, a.dim, generator=g)
    w = torch.randn(3, a.dim, generator=g) / a.dim ** 0.5
    w[1] = -0.7 * w[0] + 0.5 * w[1]
    z = x @ w.t()
    return x, {"price": torch.sin(2 * z[:, 0]), "demand": z[:, 1].tanh(),
               "churn": (z[:, 2] + 0.3 * torch.randn(a.rows, generator=g) > 0).float()}


def losses(out, y):
    return {t: F.binary_cross_entropy_with_logits(out[t], y[t]) if t == "churn" else F.mse_loss(out[t], y[t])
            for t in TASKS}


class PCGrad:
    """Per-task gradients, averaged over the processes, then projected pairwise.

    Projection is not linear in the gradients, hence the averaging comes first;
    the order of the projections is drawn from a generator that is seeded alike.
    """

    def __init__(self, module, optimizer, seed):
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.opt = optimizer
        self.order = random.Random(seed)
        self.conflicts = 0

    def flat(self, loss):
        grads = torch.autograd.grad(loss, self.params, retain_graph=True, allow_unused=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1)
                          for p, g in zip(self.params, grads)])

    def step(self, per_task):
        names = list(per_task)
        stack = torch.stack([self.flat(per_task[t]) for t in names])
        dist.all_reduce(stack)
        stack /= dist.get_world_size()
        merged = torch.zeros_like(stack[0])
        for i in range(len(names)):
            g = stack[i].clone()
            others = [j for j in range(len(names)) if j != i]
            self.order.shuffle(others)
            for j in others:
                dot = torch.dot(g, stack[j])
                if dot < 0:
                    g -= dot / stack[j].norm().pow(2).clamp_min(1e-12) * stack[j]
                    self.conflicts += 1
            merged += g
        at = 0
        for p in self.params:
            p.grad = merged[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
        self.opt.step()


def main():
    a = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(a.seed + rank)
    net = SharedNet(a)
    with torch.no_grad():
        vec = nn.utils.parameters_to_vector(net.parameters())
        dist.broadcast(vec, src=0)
        nn.utils.vector_to_parameters(vec, net.parameters())
    opt = torch.optim.Adam(net.parameters(), lr=a.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)
    pc = PCGrad(net, opt, a.seed)
    x, y = rows(a)
    for epoch in range(a.epochs):
        g = torch.Generator().manual_seed(a.seed + 100 * epoch)
        order = torch.randperm(a.rows, generator=g)
        order = order[: a.rows // (world * a.batch) * world * a.batch]
        sums = torch.zeros(len(TASKS) + 1)
        for chunk in order.split(world * a.batch):
            idx = chunk[rank * a.batch : (rank + 1) * a.batch]
            per_task = losses(net(x[idx]), {t: v[idx] for t, v in y.items()})
            pc.step(per_task)
            sums += torch.tensor([per_task[t].item() for t in TASKS] + [1.0])
        sched.step()
        dist.all_reduce(sums)
        log.info("epoch %d %s conflicts %d", epoch,
                 " ".join(f"{t} {v:.4f}" for t, v in zip(TASKS, (sums[:-1] / sums[-1]).tolist())), pc.conflicts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
