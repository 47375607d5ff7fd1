import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from groups import GroupBook, agree


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=25)
    ap.add_argument("--index-pause", type=float, default=8.0)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    plan = agree(rank, world)
    book = GroupBook(slow_rank=1, pause=a.index_pause).build(plan)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    for step in range(a.steps):
        x = torch.randn(24, 8, generator=gen)
        loss = nn.functional.mse_loss(model(x), x[:, :2].prod(1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 8 == 0:
            near = book.mean(loss.detach())
            print(f"rank {rank} step {step} own {loss.item():.4f} neighbourhood {near.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
