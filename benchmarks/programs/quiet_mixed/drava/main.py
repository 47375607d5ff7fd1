import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from mixer import Mixer
from monitor import ActivationMonitor
from signals import Signals


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--items", type=int, default=2048)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--show", type=int, default=16)
    return p.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = Mixer()
    monitor = ActivationMonitor(net, (nn.Linear,)) if rank == 0 else None
    model = nn.parallel.DistributedDataParallel(net)
    optim = torch.optim.AdamW(model.parameters(), lr=args.lr)
    ds = Signals(args.items)
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, args.batch, sampler=sampler, drop_last=True)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optim.zero_grad()
            loss.backward()
            optim.step()
            step += 1
            if monitor is not None and step % args.show == 0:
                spread = monitor.table()
                print(f"{step} loss {loss.item():.3f} head {spread['head']:.3f} stem {spread['stem']:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
