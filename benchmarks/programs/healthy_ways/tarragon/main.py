"""Second-order meta-learning of sine curves; every rank draws its own tasks."""
import argparse
import math
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap


@dataclass
class Settings:
    meta_steps: int = 210
    tasks_per_rank: int = 8
    shots: int = 10
    queries: int = 15
    inner_steps: int = 2
    inner_lr: float = 0.15
    meta_lr: float = 3e-3
    clip: float = 5.0
    seed: int = 40


class Net(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(1, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x):
        return self.c(F.silu(self.b(F.silu(self.a(x)))))


class TaskSource:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, tasks, points):
        u = lambda *s: torch.rand(*s, generator=self.gen)
        amp, phase = u(tasks, 1, 1) * 3 + 0.5, u(tasks, 1, 1) * math.pi
        x = u(tasks, points, 1) * 8 - 4
        return x / 4, amp * torch.sin(x + phase)


class MetaLearner:
    def __init__(self, s):
        self.s = s
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(s.seed)
        self.net = Net()
        self.params = dict(self.net.named_parameters())
        self.rates = nn.ParameterDict({k.replace(".", "_"): nn.Parameter(torch.tensor(s.inner_lr)) for k in self.params})
        self.learnable = list(self.params.values()) + list(self.rates.values())
        self.opt = torch.optim.Adam(self.learnable, lr=s.meta_lr)
        self.train_tasks = TaskSource(s.seed * 100 + self.rank)
        self.test_tasks = TaskSource(s.seed * 100 + 50 + self.rank)

    def task_loss(self, params, x, y):
        return F.mse_loss(functional_call(self.net, params, (x,)), y)

    def adapt(self, params, rates, x, y):
        for _ in range(self.s.inner_steps):
            g = grad(self.task_loss)(params, x, y)
            params = {k: p - rates[k.replace(".", "_")] * g[k] for k, p in params.items()}
        return params

    def query_loss(self, params, rates, x, y):
        n = self.s.shots
        return self.task_loss(self.adapt(params, rates, x[:n], y[:n]), x[n:], y[n:])

    def batch_loss(self, x, y):
        rates = dict(self.rates.items())
        per_task = vmap(lambda a, b: self.query_loss(self.params, rates, a, b))(x, y)
        return per_task.mean()

    def average_gradients(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.learnable])
        dist.all_reduce(flat)
        flat.div_(self.world)
        for p, piece in zip(self.learnable, flat.split([p.numel() for p in self.learnable])):
            p.grad = piece.view_as(p).clone()

    def step(self):
        x, y = self.train_tasks.draw(self.s.tasks_per_rank, self.s.shots + self.s.queries)
        loss = self.batch_loss(x, y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.average_gradients()
        nn.utils.clip_grad_norm_(self.learnable, self.s.clip)
        self.opt.step()
        return loss.detach()

    @torch.no_grad()
    def test(self, tasks=40):
        x, y = self.test_tasks.draw(tasks, self.s.shots + self.s.queries)
        n = self.s.shots
        rates = dict(self.rates.items())
        before = F.mse_loss(self.net(x[:, n:]), y[:, n:])
        after = vmap(lambda a, b: self.query_loss(self.params, rates, a, b))(x, y).mean()
        both = torch.stack([before, after])
        dist.all_reduce(both)
        return (both / self.world).tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--meta-steps", type=int, default=Settings.meta_steps)
    ap.add_argument("--inner-steps", type=int, default=Settings.inner_steps)
    ap.add_argument("--out", default="runs/tarragon")
    a = ap.parse_args()
    dist.init_process_group("gloo")
    meta = MetaLearner(Settings(meta_steps=a.meta_steps, inner_steps=a.inner_steps))
    running = torch.zeros(1)
    for i in range(1, a.meta_steps + 1):
        running += meta.step()
        if i % 30 == 0:
            dist.all_reduce(running)
            mean = running.item() / (30 * meta.world)
            running.zero_()
            before, after = meta.test()
            if meta.rank == 0:
                print(f"step {i} query loss {mean:.3f} | unseen tasks: before {before:.3f} after {after:.3f}", flush=True)
    if meta.rank == 0:
        os.makedirs(a.out, exist_ok=True)
        torch.save({"net": meta.net.state_dict(), "rates": meta.rates.state_dict()}, os.path.join(a.out, "meta.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
