import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from signals import StopVote


def batch(step, rank):
    g = torch.Generator().manual_seed(step * 64 + rank)
    x = torch.randn(20, 9, generator=g)
    return x, (x.norm(dim=1) > 3).long()


def leave(path, model, opt, step):
    if dist.get_rank() == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "step": step}, path)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--quota", type=int, default=None, help="steps that node 1 may run before it asks for a stop")
    ap.add_argument("--ckpt", default="runs/quota/state.pt")
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = 0
    found = torch.tensor([int(os.path.exists(a.ckpt))])
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    if found.item():
        state = torch.load(a.ckpt)
        model.module.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        step = state["step"]
    vote = StopVote()
    while step < a.steps:
        x, y = batch(step, rank)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step == a.quota and rank == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        reason = vote.collect()
        if reason:
            print(f"rank {rank} leaves at {step}: {signal.Signals(reason).name}", flush=True)
            leave(a.ckpt, model, opt, step)
    print(f"rank {rank} done at {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
