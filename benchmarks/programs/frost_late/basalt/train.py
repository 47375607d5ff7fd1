import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from preempt import PreemptionGuard, simulate_scheduler


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=60)
    p.add_argument("--walltime", type=float, default=3.0)
    p.add_argument("--out", default="runs/segment")
    return p.parse_args()


def should_stop(guard):
    return guard.requested


def save(model, opt, epoch, step, out):
    os.makedirs(out, exist_ok=True)
    torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(),
                "epoch": epoch, "step": step}, os.path.join(out, "preempt.pt"))


def train(args, rank):
    torch.manual_seed(0)
    x = torch.randn(640, 12)
    y = (x[:, :4].sum(1) > 0).long()
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2)))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    guard = PreemptionGuard()
    if rank == 0:
        simulate_scheduler(args.walltime)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            opt.step()
            step += 1
            time.sleep(0.02)
            if should_stop(guard):
                if rank == 0:
                    save(model, opt, epoch, step, args.out)
                return step, "preempted"
    return step, "finished"


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    step, why = train(args, rank)
    dist.barrier()
    print(f"rank {rank}: {why} at step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
