"""Differentially private training of a tabular classifier."""
import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn as nn

from privacy import DPSGD, PoissonSampler

log = logging.getLogger("bittern")


def records(n, d=28, classes=4):
    g = torch.Generator().manual_seed(83)
    c = torch.randn(classes, d, generator=g) * 0.6
    y = torch.randint(0, classes, (n,), generator=g)
    return c[y] + torch.randn(n, d, generator=g), y


def rdp_epsilon(sigma, q, steps, delta):
    """Poisson-subsampled Gaussian mechanism at integer orders (Mironov et al. 2019), converted to (eps, delta)."""
    best = float("inf")
    for a in range(2, 64):
        k = torch.arange(a + 1, dtype=torch.float64)
        top = torch.tensor(float(a), dtype=torch.float64)
        log_binom = torch.lgamma(top + 1) - torch.lgamma(k + 1) - torch.lgamma(top - k + 1)
        terms = log_binom + (a - k) * math.log1p(-q) + k * math.log(q) + (k * k - k) / (2 * sigma ** 2)
        rdp = torch.logsumexp(terms, 0).item() / (a - 1)
        best = min(best, steps * rdp + math.log(1 / delta) / (a - 1))
    return best


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--records", type=int, default=12_000)
    ap.add_argument("--rate", type=float, default=0.015)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--sigma", type=float, default=1.1)
    ap.add_argument("--lr", type=float, default=0.8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    x, y = records(args.records + 2000)
    xt, yt = x[args.records :][rank::world], y[args.records :][rank::world]
    x, y = x[: args.records][rank::world], y[: args.records][rank::world]
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(28, 64), nn.Tanh(), nn.Linear(64, 4))
    opt = torch.optim.SGD(net.parameters(), lr=args.lr)
    sampler = PoissonSampler(len(x), args.rate, seed=200 + rank)
    private = DPSGD(net, args.clip, args.sigma, args.rate * args.records, seed=300 + rank)

    seen = torch.zeros(2)
    for step in range(args.steps):
        lot = sampler.draw()
        seen += private.fill_grads(x[lot], y[lot])
        opt.step()
        if (step + 1) % 30 == 0:
            log.info("step %d mean loss %.4f, records %d", step + 1, (seen[0] / seen[1]).item(), int(seen[1]))
            seen.zero_()
    with torch.no_grad():
        hit = (net(xt).argmax(1) == yt).sum()
    dist.all_reduce(hit)
    log.info("test accuracy %.3f, epsilon bound %.2f at delta 1e-5", hit.item() / 2000,
             rdp_epsilon(args.sigma, args.rate, args.steps, 1e-5))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
