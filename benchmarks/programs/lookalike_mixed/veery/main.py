from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn

from topology import layout, open_groups

LIMIT = timedelta(seconds=18)


def average(model, group):
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)


def main():
    dist.init_process_group("gloo", timeout=LIMIT)
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = open_groups(rank, world, LIMIT)
    outer = rank in layout(world)["rim"]
    torch.manual_seed(0)
    model = nn.Linear(12, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    for step in range(30):
        x = torch.randn(16, 12, generator=g)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), x.sum(1))
        loss.backward()
        average(model, groups["all"])
        opt.step()
        if outer:
            worst = loss.detach().clone()
            dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=groups["rim"])
        if rank == 0 and step % 10 == 0:
            print(f"step {step} worst {float(worst):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
