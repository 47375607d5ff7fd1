"""Differentially private training: Poisson batches, per-sample clipping, noise split over the ranks."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap

from privacy import epsilon


def clinic(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    risk = 1.6 * x[:, 0] - 1.2 * x[:, 1] + 0.9 * x[:, 2] * x[:, 3] + 0.5 * x[:, 4]
    y = (risk + 0.4 * torch.randn(n, generator=g) > 0).long()
    return x, y


class PrivateTrainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        x, y = clinic(args.records, 1)
        self.x, self.y = x[self.rank::self.world], y[self.rank::self.world]
        self.total = args.records
        torch.manual_seed(args.seed)
        self.net = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 2))
        for p in self.net.parameters():
            dist.broadcast(p.data, src=0)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=args.lr, momentum=0.9)
        self.gen = torch.Generator().manual_seed(args.seed * 100 + 1 + self.rank)
        self.per_sample = vmap(grad_and_value(self._loss), in_dims=(None, 0, 0))

    def _loss(self, params, x, y):
        out = functional_call(self.net, params, (x[None],))
        return F.cross_entropy(out, y[None])

    def poisson(self):
        picked = torch.rand(len(self.x), generator=self.gen) < self.args.rate
        return self.x[picked], self.y[picked]

    def clipped_sum(self, x, y):
        params = {k: p.detach() for k, p in self.net.named_parameters()}
        if len(x) == 0:
            zero = {k: torch.zeros_like(p) for k, p in params.items()}
            return zero, torch.zeros(()), torch.zeros(())
        grads, losses = self.per_sample(params, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (self.args.clip / (norms + 1e-6)).clamp(max=1.0)
        summed = {k: torch.einsum("n,n...->...", factor, g) for k, g in grads.items()}
        return summed, losses.sum(), (norms > self.args.clip).float().sum()

    def step(self):
        x, y = self.poisson()
        summed, loss, over = self.clipped_sum(x, y)
        share = self.args.sigma * self.args.clip / self.world ** 0.5
        works = []
        for k, p in self.net.named_parameters():
            noisy = summed[k] + share * torch.randn(p.shape, generator=self.gen)
            p.grad = noisy
            works.append(dist.all_reduce(noisy, async_op=True))
        stats = torch.stack([loss, over, torch.tensor(float(len(x)))])
        works.append(dist.all_reduce(stats, async_op=True))
        for w in works:
            w.wait()
        for p in self.net.parameters():
            p.grad.div_(self.args.rate * self.total)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return stats

    @torch.no_grad()
    def accuracy(self, x, y):
        mine = (self.net(x[self.rank::self.world]).argmax(1) == y[self.rank::self.world])
        s = torch.tensor([mine.sum().item(), float(len(mine))])
        dist.all_reduce(s)
        return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--records", type=int, default=6000)
    ap.add_argument("--rate", type=float, default=0.03)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--sigma", type=float, default=1.1)
    ap.add_argument("--lr", type=float, default=0.25)
    ap.add_argument("--delta", type=float, default=1e-5)
    ap.add_argument("--seed", type=int, default=29)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    trainer = PrivateTrainer(args)
    test = clinic(1500, 2)
    window = torch.zeros(3)
    for step in range(1, args.steps + 1):
        window += trainer.step()
        if step % 40 == 0:
            acc = trainer.accuracy(*test)
            if trainer.rank == 0:
                print(f"step {step} loss {(window[0] / window[2]).item():.4f} clipped {(window[1] / window[2]).item():.2f} "
                      f"batch {window[2].item() / 40:.1f} accuracy {acc:.3f} "
                      f"eps {epsilon(args.rate, args.sigma, step, args.delta):.2f}", flush=True)
            window.zero_()
    if trainer.rank == 0:
        os.makedirs("runs/marjoram", exist_ok=True)
        torch.save(trainer.net.state_dict(), "runs/marjoram/private.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
