import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class SharedTrunk(nn.Module):
    def __init__(self, tasks=3, width=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(14, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(tasks))

    def forward(self, x):
        h = self.trunk(x)
        return [head(h).squeeze(-1) for head in self.heads]


class PCGrad:
    """Projects conflicting task gradients, on gradients that were averaged over the data-parallel group."""

    def __init__(self, optimizer, model, seed=0):
        self.optimizer, self.model = optimizer, model
        self.rng = random.Random(seed)

    def _task_grads(self, losses):
        params = [p for p in self.model.parameters()]
        flats = []
        for i, loss in enumerate(losses):
            grads = torch.autograd.grad(loss, params, retain_graph=i + 1 < len(losses), allow_unused=True)
            flats.append(torch.cat([(g if g is not None else torch.zeros_like(p)).flatten()
                                    for g, p in zip(grads, params)]))
        stacked = torch.stack(flats)
        dist.all_reduce(stacked)
        return stacked / dist.get_world_size()

    def step(self, losses):
        g = self._task_grads(losses)
        out = g.clone()
        for i in range(len(g)):
            order = [j for j in range(len(g)) if j != i]
            self.rng.shuffle(order)
            for j in order:
                dot = torch.dot(out[i], g[j])
                if dot < 0:
                    out[i] -= dot / g[j].norm().pow(2).clamp_min(1e-12) * g[j]
        merged = out.sum(0)
        i = 0
        for p in self.model.parameters():
            p.grad = merged[i:i + p.numel()].view_as(p).clone()
            i += p.numel()
        self.optimizer.step()


def make_batch(gen, n=32):
    x = torch.randn(n, 14, generator=gen)
    y = [(x[:, :4].sum(1) > 0).float(), (x[:, 2:7].sum(1) < 0).float(), torch.sin(x[:, 0]) + x[:, 9]]
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(21)
    model = SharedTrunk()
    opt = PCGrad(torch.optim.Adam(model.parameters(), lr=2e-3), model)
    gen = torch.Generator().manual_seed(77 + rank)
    for step in range(args.steps):
        x, (a, b, c) = make_batch(gen)
        pa, pb, pc = model(x)
        losses = [F.binary_cross_entropy_with_logits(pa, a), F.binary_cross_entropy_with_logits(pb, b), F.mse_loss(pc, c)]
        opt.step(losses)
        if step % 20 == 0:
            row = torch.stack([l.detach() for l in losses])
            dist.all_reduce(row)
            if rank == 0:
                print(step, [round(v, 3) for v in (row / dist.get_world_size()).tolist()], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
