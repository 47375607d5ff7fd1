"""OpenAI-style evolution strategies (Salimans et al. 2017): only scalar returns travel between processes."""
import argparse
import logging

import torch
import torch.distributed as dist

from env import PoleBatch

log = logging.getLogger("chisel")
SHAPES = [(4, 32), (32,), (32, 32), (32,), (32, 1), (1,)]
DIM = sum(torch.Size(s).numel() for s in SHAPES)


def unpack(flat):
    parts = flat.split([torch.Size(s).numel() for s in SHAPES], dim=-1)
    return [p.reshape(*flat.shape[:-1], *s) for p, s in zip(parts, SHAPES)]


def policy(ws, obs):
    w1, b1, w2, b2, w3, b3 = ws
    h = torch.tanh(torch.baddbmm(b1.unsqueeze(1), obs, w1))
    h = torch.tanh(torch.baddbmm(b2.unsqueeze(1), h, w2))
    return torch.tanh(torch.baddbmm(b3.unsqueeze(1), h, w3)).squeeze(-1)


@torch.no_grad()
def rollout(thetas, seed, episodes, horizon):
    env = PoleBatch(len(thetas), episodes, seed)
    ws = unpack(thetas)
    total = torch.zeros(len(thetas), episodes)
    for _ in range(horizon):
        total += env.step(policy(ws, env.s))
    return total.mean(1)


def noise(it, pairs):
    gen = torch.Generator().manual_seed(90_000 + it)
    return torch.randn(pairs, DIM, generator=gen)


def centered_ranks(r):
    order = torch.empty_like(r)
    order[r.argsort()] = torch.arange(len(r), dtype=r.dtype)
    return order / (len(r) - 1) - 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=40)
    ap.add_argument("--pairs", type=int, default=64)
    ap.add_argument("--sigma", type=float, default=0.08)
    ap.add_argument("--lr", type=float, default=0.04)
    ap.add_argument("--horizon", type=int, default=160)
    ap.add_argument("--episodes", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    assert args.pairs % world == 0
    per = args.pairs // world
    mine = slice(rank * per, (rank + 1) * per)

    theta = torch.nn.Parameter(torch.randn(DIM, generator=torch.Generator().manual_seed(5)) * 0.1)
    opt = torch.optim.Adam([theta], lr=args.lr)
    returns = torch.empty(world, 2, per)

    for it in range(args.iters):
        eps = noise(it, args.pairs)
        local = torch.cat([theta.detach() + args.sigma * eps[mine], theta.detach() - args.sigma * eps[mine]])
        fit = rollout(local, seed=it, episodes=args.episodes, horizon=args.horizon).view(2, per)
        dist.all_gather_into_tensor(returns.view(-1), fit.reshape(-1))
        plus, minus = returns[:, 0].reshape(-1), returns[:, 1].reshape(-1)
        shaped = centered_ranks(torch.cat([plus, minus]))
        w = shaped[: args.pairs] - shaped[args.pairs:]
        grad = (w @ eps) / (2 * args.pairs * args.sigma)
        theta.grad = -grad + 0.005 * theta.detach()
        opt.step()
        if it % 5 == 0:
            log.info("iter %3d population mean %.2f best %.2f", it, returns.mean().item(), returns.max().item())

    episodes = 32
    score = rollout(theta.detach().unsqueeze(0), seed=10_000 + rank, episodes=episodes, horizon=args.horizon)
    dist.all_reduce(score, op=dist.ReduceOp.AVG)
    log.info("final policy: mean return %.2f of %d over %d episodes", score.item(), args.horizon, episodes * world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
