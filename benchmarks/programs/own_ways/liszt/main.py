"""Image denoising with a sharded optimizer."""
import argparse
import contextlib
import logging
import math
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from unet import TinyUnet

logger = logging.getLogger(__name__)


class Blobs(Dataset):
    def __init__(self, n, size=16, noise=0.4, seed=0):
        self.n, self.size, self.noise, self.seed = n, size, noise, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        yy, xx = torch.meshgrid(torch.arange(self.size), torch.arange(self.size), indexing="ij")
        clean = torch.zeros(self.size, self.size)
        for _ in range(3):
            cy, cx = torch.rand(2, generator=g) * self.size
            s = 1.5 + 2 * torch.rand(1, generator=g)
            clean += torch.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / (2 * s ** 2))
        noisy = clean + self.noise * torch.randn(clean.shape, generator=g)
        return noisy.unsqueeze(0), clean.unsqueeze(0)


class Checkpointer:
    def __init__(self, folder, keep=2):
        self.folder, self.keep = folder, keep
        self.saved = []

    def save(self, model, optimizer, scheduler, epoch, psnr):
        optimizer.consolidate_state_dict(to=0)
        path = os.path.join(self.folder, f"epoch{epoch:03d}.pt")
        torch.save({
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": epoch,
            "psnr": psnr,
        }, path)
        self.saved.append(path)
        while len(self.saved) > self.keep:
            os.remove(self.saved.pop(0))
        logger.info("saved %s", os.path.basename(path))


def autocast(enabled):
    return torch.autocast("cpu", torch.bfloat16) if enabled else contextlib.nullcontext()


@torch.no_grad()
def psnr_of(model, loader, amp):
    model.eval()
    err = torch.zeros(2, dtype=torch.float64)
    for noisy, clean in loader:
        with autocast(amp):
            out = model.module(noisy)
        err[0] += ((out.float() - clean) ** 2).sum()
        err[1] += clean.numel()
    dist.all_reduce(err)
    return -10 * math.log10(err[0] / err[1])


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    train_set, test_set = Blobs(args.train, seed=1), Blobs(args.test, seed=2)
    sampler = DistributedSampler(train_set, seed=args.seed)
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test_set, 32, sampler=DistributedSampler(test_set, shuffle=False))

    model = DDP(TinyUnet(args.width))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW,
                                        lr=args.lr, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer,
                                                           args.epochs * len(train_loader))
    folder = tempfile.mkdtemp(prefix="denoise_") if rank == 0 else None
    ckpt = Checkpointer(folder)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for it, (noisy, clean) in enumerate(train_loader):
            with autocast(args.amp):
                loss = nn.functional.l1_loss(model(noisy).float(), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if it % 5 == 0:
                logger.info("epoch %d it %d loss %.4f lr %.2e", epoch, it, loss.item(),
                            scheduler.get_last_lr()[0])
        psnr = psnr_of(model, test_loader, args.amp)
        logger.info("epoch %d psnr %.2f dB (%d processes)", epoch, psnr, world)
        if rank == 0 and (epoch + 1) % args.save_every == 0:
            ckpt.save(model, optimizer, scheduler, epoch, psnr)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--save-every", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--train", type=int, default=160)
    p.add_argument("--test", type=int, default=64)
    p.add_argument("--width", type=int, default=8)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--amp", action="store_true")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    dist.init_process_group(backend="gloo")
    logging.basicConfig(format="%(levelname)s %(message)s",
                        level=logging.INFO if dist.get_rank() == 0 else logging.ERROR)
    try:
        train(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
