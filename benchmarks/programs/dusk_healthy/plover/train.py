import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from quantizer import EMAQuantizer


class VQVAE(nn.Module):
    def __init__(self, ch=48, dim=16, codes=96):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, ch, 4, 2, 1), nn.ReLU(), nn.Conv2d(ch, ch, 4, 2, 1), nn.ReLU(),
                                 nn.Conv2d(ch, ch, 3, 1, 1), nn.ReLU(), nn.Conv2d(ch, dim, 1))
        self.vq = EMAQuantizer(codes, dim)
        self.dec = nn.Sequential(nn.Conv2d(dim, ch, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(ch, ch, 4, 2, 1), nn.ReLU(),
                                 nn.ConvTranspose2d(ch, 1, 4, 2, 1))

    def forward(self, x):
        q, commit, codes, revived = self.vq(self.enc(x))
        return self.dec(q), commit, codes, revived


def textures(n):
    g = torch.Generator().manual_seed(19)
    f, a, p = torch.rand(n, 1, 1, generator=g) * 0.6 + 0.2, torch.rand(n, 1, 1, generator=g) * 3.14, torch.rand(n, 1, 1, generator=g) * 6.28
    yy, xx = torch.meshgrid(torch.arange(24.), torch.arange(24.), indexing="ij")
    img = torch.sin(f * (xx * a.cos() + yy * a.sin()) + p)
    return TensorDataset((img + 0.05 * torch.randn(n, 24, 24, generator=g))[:, None])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    # the quantizer keeps its buffers in step by itself
    model = DDP(VQVAE(), broadcast_buffers=False)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    ds = textures(1600)
    sampler = DistributedSampler(ds, world, rank)
    loader = DataLoader(ds, args.batch_size, sampler=sampler)
    torch.manual_seed(50 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0, total, revived = time.time(), 0.0, 0
        hist = torch.zeros(model.module.vq.n)
        for (x,) in loader:
            rec, commit, codes, born = model(x)
            loss = F.mse_loss(rec, x) + commit
            opt.zero_grad()
            loss.backward()
            opt.step()
            total, revived = total + loss.item(), revived + born
            hist += torch.bincount(codes, minlength=len(hist))
        dist.all_reduce(hist)
        p = hist / hist.sum()
        perplexity = (-(p * (p + 1e-9).log()).sum()).exp().item()
        print(f"rank {rank} epoch {epoch} loss {total / len(loader):.4f} perplexity {perplexity:.1f} "
              f"revived {revived} {time.time() - t0:.1f}s", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(out, "vqvae.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
