import argparse
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from checkpoint import Store
from optim import PartitionedMomentum


def network(d, h, c):
    return nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, c))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=32)
    p.add_argument("--hidden", type=int, default=144)
    p.add_argument("--classes", type=int, default=8)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--legs", type=int, default=4)
    p.add_argument("--leg-steps", type=int, default=60)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp(prefix="legs-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    teacher = torch.randn(args.dim, args.classes, generator=torch.Generator().manual_seed(9))

    for leg in range(args.legs):
        torch.manual_seed(30)
        net = network(args.dim, args.hidden, args.classes)
        opt = PartitionedMomentum(net, args.lr)
        gen = torch.Generator().manual_seed(80 + rank)
        store = Store(box[0])
        step = store.load(net, opt, gen)
        end = step + args.leg_steps
        while step < end:
            x = torch.randn(args.batch, args.dim, generator=gen)
            y = (x @ teacher).argmax(1)
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            step += 1
            if step % 10 == 0:
                v = loss.detach()
                dist.all_reduce(v)
                if rank == 0:
                    print(f"leg {leg} step {step} loss {v.item() / dist.get_world_size():.4f}", flush=True)
        store.save(net, opt, gen, step)

    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
