"""VQ-VAE on procedurally generated 32x32 textures, data parallel.

    torchrun --nproc_per_node 2 train.py
"""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from quantizer import EuclideanCodebook

logger = logging.getLogger("vqvae")


class Textures(Dataset):
    def __init__(self, size, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.freq = torch.randint(1, 9, (size, 3, 2), generator=g).float()
        self.phase = torch.rand(size, 3, generator=g) * 6.283
        axis = torch.linspace(0, 3.1416, 32)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return len(self.freq)

    def __getitem__(self, i):
        f, p = self.freq[i], self.phase[i]
        return torch.stack([torch.sin(f[c, 0] * self.xx + f[c, 1] * self.yy + p[c]) for c in range(3)])


class VQVAE(nn.Module):
    def __init__(self, hidden=64, dim=32, codebook_size=256):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, hidden, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(hidden, hidden, 4, 2, 1), nn.ReLU(), nn.Conv2d(hidden, dim, 3, 1, 1))
        self.quantizer = EuclideanCodebook(dim, codebook_size)
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, hidden, 3, 1, 1), nn.ReLU(),
            nn.ConvTranspose2d(hidden, hidden, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(hidden, 3, 4, 2, 1))

    def forward(self, x):
        z = self.encoder(x).permute(0, 2, 3, 1)
        q, codes, commit = self.quantizer(z)
        return self.decoder(q.permute(0, 3, 1, 2)), codes, commit


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1600)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--beta", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", default=None)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR)
    out = args.out or tempfile.mkdtemp()

    torch.manual_seed(args.seed)
    # the quantizer reduces its own statistics, no need to ship the codebook at every forward
    model = DistributedDataParallel(VQVAE(), broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-5)
    dataset = Textures(args.samples, seed=args.seed)
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images in loader:
            recon, codes, commit = model(images)
            rec_loss = F.mse_loss(recon, images)
            loss = rec_loss + args.beta * commit
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                used = torch.bincount(codes.flatten(), minlength=256)
                dist.all_reduce(used)
                logger.info("epoch %d step %d rec %.4f commit %.4f codes used %d/256", epoch, step,
                            rec_loss.item(), commit.item(), int((used > 0).sum()))
            step += 1
        if rank == 0:
            torch.save(model.module.state_dict(), os.path.join(out, "vqvae.pt"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
