import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from background import Snapshotter
from bank import GlobalBatches, Regressor, make_bank


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--until", type=int, default=48)
    p.add_argument("--every", type=int, default=12)
    p.add_argument("--global-batch", type=int, default=48)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--dir", type=Path, default=Path("snapshots"))
    p.add_argument("--continue", dest="cont", action="store_true")
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(29)
    net = Regressor()
    optim = torch.optim.AdamW(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, T_max=120)
    snaps = Snapshotter(args.dir, enabled=rank == 0)
    step = snaps.restore(net, optim, sched) if args.cont else 0
    model = DistributedDataParallel(net)
    batches = GlobalBatches(make_bank(), args.global_batch, rank, world)
    while step < args.until:
        x, y = batches[step]
        loss = torch.nn.functional.mse_loss(model(x), y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        sched.step()
        step += 1
        if step % args.every == 0:
            snaps.take(step, net, optim, sched)
            dist.all_reduce(loss.data)
            if rank == 0:
                print(f"step {step} loss {loss.item() / world:.6f} world {world}", flush=True)
    snaps.drain()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
