"""Warm restarts with a linear warm-up, different peaks per parameter group."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LinearLR, SequentialLR

logging.basicConfig(level=logging.INFO, format="%(message)s")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--warmup", type=int, default=8)
    p.add_argument("--period", type=int, default=13)
    p.add_argument("--snapshots", action="store_true", default=True, help="keep the weights at the end of every cycle")
    return p.parse_args()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(64, 16, mode="mean")
        self.body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
        self.head = nn.Linear(32, 5)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


def groups(model, lr):
    return [
        {"params": model.embed.parameters(), "lr": 10 * lr, "weight_decay": 0.0},
        {"params": model.body.parameters(), "lr": lr},
        {"params": model.head.parameters(), "lr": 3 * lr},
    ]


def make(gen, n=20):
    tokens = torch.randint(0, 64, (n, 7), generator=gen)
    return tokens, tokens.float().mean(1).div(64 / 5).long().clamp(0, 4)


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    model = DDP(Model())
    opt = torch.optim.AdamW(groups(model.module, 1e-3))
    warm = LinearLR(opt, start_factor=0.05, total_iters=args.warmup)
    cyc = CosineAnnealingWarmRestarts(opt, T_0=args.period, eta_min=1e-6)
    sched = SequentialLR(opt, [warm, cyc], milestones=[args.warmup])
    gen = torch.Generator().manual_seed(90 + rank)
    cycle_ends = []
    for step in range(1, args.steps + 1):
        tokens, y = make(gen)
        loss = F.cross_entropy(model(tokens), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step > args.warmup and (step - args.warmup) % args.period == 0:
            if args.snapshots:
                cycle_ends.append({k: v.clone() for k, v in model.module.state_dict().items()})
            if rank == 0:
                lrs = " ".join(f"{g['lr']:.5f}" for g in opt.param_groups)
                logging.info("end of a cycle at step %d: loss %.4f lr %s", step, loss.item(), lrs)
    blended = {k: torch.stack([s[k] for s in cycle_ends]).mean(0) for k in cycle_ends[0]}
    probe = Model()
    probe.load_state_dict(blended)
    tokens, y = make(torch.Generator().manual_seed(1), 200)
    if rank == 0:
        logging.info("blend of %d snapshots: loss %.4f", len(cycle_ends), F.cross_entropy(probe(tokens), y).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
