"""Population-based training: four independent learners that occasionally copy the leader."""
import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from population import Member, exploit

log = logging.getLogger("pbt")


def make_split(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 6, generator=gen) - 1
    y = torch.sin(math.pi * x[:, 0] * x[:, 1]) + x[:, 2].abs() - 0.5 * x[:, 3] * x[:, 4] + 0.3 * x[:, 5]
    return x, (y + 0.05 * torch.randn(n, generator=gen)).unsqueeze(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--steps_per_round", type=int, default=40)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--seed", type=int, default=30)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(args.seed + rank)
    model = nn.Sequential(nn.Linear(6, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1))
    lr = 10 ** (-3.2 + 0.6 * rank)
    member = Member(model, lr=lr, weight_decay=10 ** (-5 + 0.5 * rank), seed=args.seed + rank)
    train_x, train_y = make_split(4000, args.seed)
    val_x, val_y = make_split(1000, args.seed + 1)

    for rnd in range(args.rounds):
        for _ in range(args.steps_per_round):
            idx = torch.randint(0, len(train_x), (args.batch,))
            loss = F.mse_loss(model(train_x[idx]), train_y[idx])
            member.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            member.optimizer.step()
        with torch.no_grad():
            score = -F.mse_loss(model(val_x), val_y).item()
        scores, pairs = exploit(member, score)
        if rank == 0:
            log.info("round %d val mse %s copy %s", rnd, " ".join(f"{-s:.4f}" for s in scores),
                     ", ".join(f"{a}->{b}" for a, b in pairs))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
