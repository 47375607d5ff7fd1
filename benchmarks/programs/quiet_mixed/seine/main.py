from pathlib import Path
import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import checkpoint
from faces import patches
from unet import SmallUNet


def parse():
    p = argparse.ArgumentParser(description="denoiser")
    p.add_argument("--workdir", type=Path, default=Path("run"))
    p.add_argument("--resume", action="store_true")
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--lr", type=float, default=2e-3)
    return p.parse_args()


def train_epoch(model, optim, sched, loader, epoch):
    g = torch.Generator().manual_seed(1000 * epoch + dist.get_rank())
    total = torch.zeros(2)
    for (clean,) in loader:
        sigma = torch.rand(len(clean), 1, 1, 1, generator=g) * 0.8
        noise = torch.randn(clean.shape, generator=g)
        loss = (model(clean + sigma * noise) - clean).pow(2).mean()
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        sched.step()
        total += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    net = SmallUNet()
    optim = torch.optim.Adam(net.parameters(), lr=args.lr, betas=(0.9, 0.99))
    sched = torch.optim.lr_scheduler.ExponentialLR(optim, gamma=0.99)
    start = 0
    if args.resume:
        start = checkpoint.restore(args.workdir, net, optim, sched)
    model = DistributedDataParallel(net)
    loader, sampler = patches(args.batch)
    for epoch in range(start, start + args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optim, sched, loader, epoch)
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.5f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
        checkpoint.store(args.workdir, net, optim, sched, epoch + 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
