import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from vq import VectorQuantizerEMA


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net = nn.Sequential(nn.ReLU(), nn.Conv2d(c, c // 2, 3, padding=1), nn.ReLU(), nn.Conv2d(c // 2, c, 1))

    def forward(self, x):
        return x + self.net(x)


class VQVAE(nn.Module):
    def __init__(self, hidden=48, dim=32, codes=256):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, hidden, 4, 2, 1), nn.ReLU(), nn.Conv2d(hidden, hidden, 4, 2, 1),
            Res(hidden), Res(hidden), nn.Conv2d(hidden, dim, 1))
        self.quantizer = VectorQuantizerEMA(codes, dim)
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, hidden, 3, padding=1), Res(hidden), nn.ReLU(),
            nn.ConvTranspose2d(hidden, hidden, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(hidden, 3, 4, 2, 1))

    def forward(self, x):
        q, vq_loss, perplexity = self.quantizer(self.encoder(x))
        return self.decoder(q), vq_loss, perplexity


class Blobs(Dataset):
    """Coloured gaussian blobs, 32x32."""

    def __init__(self, n=2048):
        self.n = n
        axis = torch.linspace(-1, 1, 32)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        img = torch.zeros(3, 32, 32)
        for _ in range(3):
            cx, cy, s = torch.rand(3, generator=g)
            colour = torch.rand(3, 1, 1, generator=g)
            img += colour * torch.exp(-((self.xx - 2 * cx + 1) ** 2 + (self.yy - 2 * cy + 1) ** 2) / (0.05 + 0.2 * s))
        return img.clamp(0, 1) - 0.5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--codes", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(VQVAE(codes=args.codes), forward_sync_buffers=False)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = Blobs()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)

    start, step = time.time(), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x in loader:
            recon, vq_loss, perplexity = model(x)
            loss = F.mse_loss(recon, x) / 0.06 + vq_loss
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 10 == 0 and rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} perplexity {perplexity.item():.1f} "
                      f"[{time.time() - start:.1f}s]", flush=True)
            step += 1
    if rank == 0:
        torch.save(model.module.state_dict(), "/tmp/vqvae_slate.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
