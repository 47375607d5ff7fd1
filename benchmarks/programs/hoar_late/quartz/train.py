"""Random search. Every rank trains its own trials; results are exchanged after each round."""
import argparse
import logging
import math
import random

import torch
import torch.distributed as dist
import torch.nn as nn


def sample(rng):
    return {"lr": 10 ** rng.uniform(-3, 1.5), "width": rng.choice([8, 16, 32]), "momentum": rng.choice([0.0, 0.9])}


def run_trial(cfg, seed, steps):
    torch.manual_seed(seed)
    x = torch.randn(512, 6)
    y = (x ** 2).sum(1, keepdim=True)
    net = nn.Sequential(nn.Linear(6, cfg["width"]), nn.ReLU(), nn.Linear(cfg["width"], 1))
    opt = torch.optim.SGD(net.parameters(), lr=cfg["lr"], momentum=cfg["momentum"])
    loss = torch.tensor(0.0)
    for step in range(steps):
        idx = torch.randint(0, len(x), (64,))
        loss = nn.functional.mse_loss(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return nn.functional.mse_loss(net(x), y).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=4)
    ap.add_argument("--trials-per-rank", type=int, default=3)
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")
    rng = random.Random(40 + rank)
    history = []
    for rnd in range(args.rounds):
        mine = []
        for t in range(args.trials_per_rank):
            cfg = sample(rng)
            score = run_trial(cfg, seed=rnd * 10 + t, steps=args.steps)
            if not math.isfinite(score):
                logging.info("trial lr=%.3g width=%d diverged (%s)", cfg["lr"], cfg["width"], score)
                score = float("inf")
            mine.append((score, cfg))
        everyone = [None] * world
        dist.all_gather_object(everyone, mine)
        history += [t for part in everyone for t in part]
        best = min(history, key=lambda t: t[0])
        if rank == 0:
            lost = sum(math.isinf(s) for s, _ in history)
            logging.info("round %d best %.4f lr=%.3g, %d of %d diverged", rnd, best[0], best[1]["lr"], lost, len(history))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
