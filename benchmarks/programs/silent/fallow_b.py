import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--resume", action="store_true")
    ap.add_argument("--ckpt", default="fallow_out/last.pt")
    return ap.parse_args()


def toy(n=256):
    g = torch.Generator().manual_seed(14)
    x = torch.randn(n, 9, generator=g)
    return TensorDataset(x, (x @ torch.randn(9, 4, generator=g)).argmax(1))


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, path)
    dist.barrier()


def load_checkpoint(path, net, optimizer):
    ckpt = torch.load(path, map_location="cpu")
    net.load_state_dict(ckpt["model"])
    optimizer.load_state_dict(ckpt["optimizer"])
    return ckpt["epoch"]


def main():
    args = get_args()
    dist.init_process_group("gloo")
    torch.manual_seed(77)
    net = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    start = 0
    if args.resume and os.path.exists(args.ckpt):
        start = load_checkpoint(args.ckpt, net, optimizer)
        if dist.get_rank() == 0:
            print(f"=> resumed from epoch {start}", flush=True)
    model = DDP(net)
    ds = toy()
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=8, sampler=sampler)
    for epoch in range(start, start + args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader) / dist.get_world_size():.4f}", flush=True)
        save_checkpoint(args.ckpt, model, optimizer, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
