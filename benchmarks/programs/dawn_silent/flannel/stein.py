"""Stein variational gradient descent for a small Bayesian network: every process holds one particle set."""
import argparse
import math

import torch
import torch.distributed as dist


class Particles:
    def __init__(self, count, n_in, hidden, seed):
        g = torch.Generator().manual_seed(seed)
        self.shapes = [(n_in, hidden), (hidden,), (hidden, 1), (1,)]
        size = sum(math.prod(s) for s in self.shapes)
        self.value = torch.nn.Parameter(torch.randn(count, size, generator=g) * 0.4)

    def predict(self, x):
        parts, i = [], 0
        for s in self.shapes:
            n = math.prod(s)
            parts.append(self.value[:, i:i + n].view(-1, *s))
            i += n
        w1, b1, w2, b2 = parts
        h = torch.tanh(torch.einsum("ni,pih->pnh", x, w1) + b1[:, None])
        return torch.einsum("pnh,pho->pno", h, w2).squeeze(-1) + b2


def gather_rows(t):
    out = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(out, t.contiguous())
    return torch.cat(out)


def stein_direction(mine, everyone, scores):
    """Kernel-weighted scores of all particles, plus the repulsion between them, for the local rows."""
    d2 = torch.cdist(mine, everyone).pow(2)
    full = torch.cdist(everyone, everyone).pow(2)
    h = full.median() / math.log(len(everyone) + 1)
    k = torch.exp(-d2 / h)
    repulse = (2 / h) * (k.sum(1, keepdim=True) * mine - k @ everyone)
    return (k @ scores + repulse) / len(everyone)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--particles", type=int, default=6)
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--lr", type=float, default=0.02)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(5)
    x = torch.rand(400, 3, generator=g) * 4 - 2
    y = torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * torch.randn(400, generator=g)
    bag = Particles(args.particles, 3, 24, seed=100 + rank)
    opt = torch.optim.Adagrad([bag.value], lr=args.lr * 5)
    order = torch.Generator().manual_seed(6)
    for step in range(args.steps):
        idx = torch.randint(0, 400, (100,), generator=order)
        pred = bag.predict(x[idx])
        loglik = -0.5 * ((pred - y[idx]) ** 2).sum(1) * (400 / 100) / 0.1
        logprior = -0.5 * bag.value.pow(2).sum(1)
        score, = torch.autograd.grad((loglik + logprior).sum(), bag.value)
        values = bag.value.detach()
        bag.value.grad = -stein_direction(values, gather_rows(values), gather_rows(score))
        opt.step()
        if step % 50 == 0 or step == args.steps - 1:
            with torch.no_grad():
                mean = bag.predict(x).mean(0)
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} rmse of the mean {((mean / world - y) ** 2).mean().sqrt().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
