"""Evolution strategies: workers exchange only scalar returns and rebuild each other's noise from seeds."""
import argparse

import torch
import torch.distributed as dist


def unpack(theta, shapes):
    out, i = [], 0
    for s in shapes:
        n = s.numel()
        out.append(theta[i:i + n].view(s))
        i += n
    return out


def cartpole_return(theta, shapes, start, horizon=120):
    """A batch of linearised cart-poles driven by a two-layer policy."""
    w1, b1, w2, b2 = unpack(theta, shapes)
    s = start.clone()
    alive, score = torch.ones(len(s)), torch.zeros(len(s))
    for _ in range(horizon):
        u = torch.tanh(torch.tanh(s @ w1 + b1) @ w2 + b2).squeeze(1) * 10
        x, v, a, w = s.unbind(1)
        acc = 9.8 * a - 0.8 * u
        s = torch.stack([x + 0.02 * v, v + 0.02 * u, a + 0.02 * w, w + 0.04 * acc], 1)
        alive = alive * ((s[:, 2].abs() < 0.5) & (s[:, 0].abs() < 2.4)).float()
        score = score + alive * (1 - 0.2 * s[:, 0].abs())
        s = s.clamp(-5, 5)
    return score.mean()


def perturbation(seed, n):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def centered_ranks(x):
    r = torch.empty_like(x)
    r[x.argsort()] = torch.arange(len(x)).float()
    return r / (len(x) - 1) - 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=60)
    ap.add_argument("--pairs-per-rank", type=int, default=4)
    ap.add_argument("--sigma", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shapes = [torch.Size(s) for s in ((4, 16), (16,), (16, 1), (1,))]
    n = sum(s.numel() for s in shapes)
    theta = torch.nn.Parameter(perturbation(0, n) * 0.1)
    opt = torch.optim.Adam([theta], lr=args.lr)
    for gen in range(args.generations):
        base = gen * world * args.pairs_per_rank + 10_000
        start = torch.randn(24, 4, generator=torch.Generator().manual_seed(gen)) * 0.1
        mine = torch.zeros(args.pairs_per_rank, 2)
        with torch.no_grad():
            for i in range(args.pairs_per_rank):
                eps = perturbation(base + rank * args.pairs_per_rank + i, n) * args.sigma
                mine[i, 0] = cartpole_return(theta + eps, shapes, start)
                mine[i, 1] = cartpole_return(theta - eps, shapes, start)
        parts = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(parts, mine)
        returns = torch.cat(parts)
        shaped = centered_ranks(returns.flatten()).view_as(returns)
        weight = shaped[:, 0] - shaped[:, 1]
        grad = torch.zeros(n)
        for k in range(len(weight)):
            grad += weight[k] * perturbation(base + k, n)
        theta.grad = -grad / (2 * len(weight) * args.sigma)
        opt.step()
        if rank == 0 and gen % 10 == 0:
            print(f"generation {gen} mean return {returns.mean().item():.2f} best {returns.max().item():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
