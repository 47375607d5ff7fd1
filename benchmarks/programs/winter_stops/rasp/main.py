"""Evolution strategies: workers draw candidates from a common pool until it is empty."""
import argparse
import json
import logging
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.distributed_c10d import _get_default_store

from board import Board

log = logging.getLogger("es")
SIZES = [(12, 8), (8, 2)]


def policy(flat, x):
    at = 0
    for i, (a, b) in enumerate(SIZES):
        w = flat[at : at + a * b].view(a, b)
        at += a * b
        bias = flat[at : at + b]
        at += b
        x = x @ w + bias
        if i < len(SIZES) - 1:
            x = torch.tanh(x)
    return x


def rollout(flat, seed, horizon, envs=256):
    """Steers points with drift to the origin; the score is minus the mean distance."""
    g = torch.Generator().manual_seed(seed)
    pos = torch.randn(envs, 2, generator=g) * 2
    vel = torch.zeros(envs, 2)
    drift = torch.randn(envs, 2, generator=g) * 0.1
    score = torch.zeros(envs)
    for t in range(horizon):
        obs = torch.cat([pos, vel, pos * vel, pos**2, vel**2, pos.sign()], 1)
        acc = torch.tanh(policy(flat, obs))
        vel = 0.9 * vel + 0.2 * acc
        pos = pos + 0.2 * vel + 0.05 * drift
        score -= pos.norm(dim=1) / horizon
    return score.mean().item()


def noise(gen, k, n):
    half = torch.randn(n, generator=torch.Generator().manual_seed(gen * 10_007 + k // 2))
    return half if k % 2 == 0 else -half


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generations", type=int, default=24)
    p.add_argument("--population", type=int, default=24)
    p.add_argument("--horizon", type=int, default=80)
    p.add_argument("--held-out-envs", type=int, default=20_000)
    p.add_argument("--sigma", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=0.3)
    p.add_argument("--out", default=f"/tmp/es-{os.environ.get('MASTER_PORT', os.getpid())}")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    os.makedirs(args.out, exist_ok=True)
    journal = os.path.join(args.out, "candidates.jsonl")
    if rank == 0:
        open(journal, "w").close()
    dist.barrier()
    board = Board(_get_default_store(), rank)

    n = sum(a * b + b for a, b in SIZES)
    centre = torch.randn(n, generator=torch.Generator().manual_seed(0)) * 0.05
    drawn, start = 0, time.time()

    for gen in range(args.generations):
        pool = f"gen{gen}"
        if gen % 6 == 5 and rank == dist.get_world_size() - 1:
            # the others empty the pool meanwhile
            held_out = rollout(centre, seed=9999, horizon=args.horizon, envs=args.held_out_envs)
            log.warning("generation %2d  held-out score %.4f", gen, held_out)
        while (k := board.ticket(pool)) < args.population:
            score = rollout(centre + args.sigma * noise(gen, k, n), seed=gen, horizon=args.horizon)
            board.put(pool, k, score)
            drawn += 1
            with board.mutex("journal"), open(journal, "a") as f:
                f.write(json.dumps({"gen": gen, "candidate": k, "worker": rank, "score": round(score, 4)}) + "\n")
        dist.monitored_barrier(timeout=timedelta(seconds=300))
        scores = torch.tensor([board.get(pool, k) for k in range(args.population)])
        rank_score = scores.argsort().argsort().float() / (len(scores) - 1) - 0.5
        grad = sum(rank_score[k] * noise(gen, k, n) for k in range(args.population)) / (args.population * args.sigma)
        centre = centre + args.lr * F.normalize(grad, dim=0)
        if gen % 4 == 3:
            log.info("generation %2d  mean %.4f  best %.4f  %.1fs", gen, scores.mean(), scores.max(), time.time() - start)

    counts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([float(drawn)]))
    same = centre.clone()
    dist.broadcast(same, src=0)
    if not torch.equal(same, centre):
        raise RuntimeError("workers disagree about the centre")
    log.info("candidates per worker: %s", [int(c) for c in counts])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
