"""Self-supervised patch restoration: a small U-shaped net learns to undo crops' corruptions."""
import argparse
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info


class Textures(Dataset):
    """Periodic textures; an item is a corrupted crop and the clean one."""

    def __init__(self, count, size, crop, seed, rank):
        base = np.random.default_rng(seed)
        fx, fy, ph = base.uniform(1, 6, (count, 1, 1)), base.uniform(1, 6, (count, 1, 1)), base.uniform(0, 6, (count, 1, 1))
        yy, xx = np.mgrid[0:size, 0:size] / size
        self.images = np.sin(2 * np.pi * (fx * xx + fy * yy) + ph).astype(np.float32)
        self.crop, self.seed, self.rank = crop, seed, rank
        self.rng = np.random.default_rng([seed, rank])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img, c = self.images[i], self.crop
        y, x = self.rng.integers(0, img.shape[0] - c, 2)
        clean = img[y:y + c, x:x + c]
        if self.rng.random() < 0.5:
            clean = clean[:, ::-1]
        noisy = clean + self.rng.normal(0, self.rng.uniform(0.1, 0.5), clean.shape).astype(np.float32)
        holes = self.rng.random(clean.shape) < 0.25
        noisy = np.where(holes, 0, noisy).astype(np.float32)
        return torch.from_numpy(noisy.copy())[None], torch.from_numpy(clean.copy())[None]


def tune_worker(worker_id):
    torch.set_num_threads(1)
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng([info.dataset.seed, info.dataset.rank, info.seed])
    info.dataset.images.setflags(write=False)


class Restorer(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.down = nn.Conv2d(1, ch, 3, stride=2, padding=1)
        self.body = nn.Sequential(nn.GroupNorm(3, ch), nn.SiLU(), nn.Conv2d(ch, ch * 2, 3, padding=1),
                                  nn.GroupNorm(3, ch * 2), nn.SiLU(), nn.Conv2d(ch * 2, ch, 3, padding=1))
        self.up = nn.ConvTranspose2d(ch, 1, 4, stride=2, padding=1)

    def forward(self, x):
        h = self.down(x)
        return x + self.up(h + self.body(h))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--count", type=int, default=128)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=33)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    data = Textures(args.count, 48, 24, args.seed, rank)
    sampler = DistributedSampler(data, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers,
                        worker_init_fn=tune_worker, drop_last=True, multiprocessing_context="fork")
    net = DDP(Restorer())
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        acc = torch.zeros(2)
        for noisy, clean in loader:
            loss = F.smooth_l1_loss(net(noisy), clean)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            acc += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(acc)
        if rank == 0:
            args.out.mkdir(parents=True, exist_ok=True)
            torch.save({"net": net.module.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, args.out / "restorer.pt")
            print(f"epoch {epoch} loss {acc[0] / acc[1]:.4f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
