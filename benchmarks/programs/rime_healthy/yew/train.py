import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from slot import TimeSlot


class ResumableSampler(DistributedSampler):
    start = 0

    def __iter__(self):
        yield from list(super().__iter__())[self.start:]

    def __len__(self):
        return super().__len__() - self.start


def logs(n, seed, dim=80):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(dim, 12, generator=torch.Generator().manual_seed(0))
    x = (torch.rand(n, dim, generator=g) < 0.15).float()
    return TensorDataset(x, ((x @ w).relu().sum(1) > 11).float())


def save(path, net, opt, epoch, done):
    rng = [None] * dist.get_world_size()
    dist.all_gather_object(rng, torch.get_rng_state())
    if dist.get_rank() == 0:
        torch.save({"net": net.module.state_dict(), "opt": opt.state_dict(), "epoch": epoch, "done": done, "rng": rng}, path + ".tmp")
        os.replace(path + ".tmp", path)
    dist.barrier()


@torch.no_grad()
def validate(net, ds):
    r, w = dist.get_rank(), dist.get_world_size()
    net.eval()
    hit = ((net(ds.tensors[0][r::w]).squeeze(1) > 0) == (ds.tensors[1][r::w] > 0)).sum().float()
    dist.all_reduce(hit)
    net.train()
    return hit.item() / len(ds)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=40)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--slot", type=float, default=0)
    ap.add_argument("--ckpt", default="slot.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(80, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)))
    torch.manual_seed(500 + rank)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4)
    train, val = logs(6144, 1), logs(1000, 2)
    sampler = ResumableSampler(train, seed=8)
    loader = DataLoader(train, args.batch, sampler=sampler, generator=torch.Generator().manual_seed(rank))
    epoch0 = done = 0
    if os.path.exists(args.ckpt):
        ck = torch.load(args.ckpt, weights_only=True)
        net.module.load_state_dict(ck["net"])
        opt.load_state_dict(ck["opt"])
        torch.set_rng_state(ck["rng"][rank])
        epoch0, done = ck["epoch"], ck["done"]
        if rank == 0:
            print(f"continue at epoch {epoch0} batch {done}", flush=True)
    slot = TimeSlot(args.slot)
    for epoch in range(epoch0, args.epochs):
        sampler.set_epoch(epoch)
        sampler.start = done * args.batch
        for x, y in loader:
            loss = F.binary_cross_entropy_with_logits(net(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            if slot.over():
                save(args.ckpt, net, opt, epoch, done)
                if rank == 0:
                    print(f"slot over at epoch {epoch} batch {done}", flush=True)
                dist.destroy_process_group()
                return
        done = 0
        acc = validate(net.module, val)
        if rank == 0:
            print(f"epoch {epoch} acc {acc:.3f}", flush=True)
    slot.close()
    save(args.ckpt, net, opt, args.epochs, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
