"""Shared encoder with one regression head per site; each process is a site with its own sensors."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, channels, dim=96):
        super().__init__()
        self.inp = nn.Linear(channels, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, dim * 2, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.body(self.inp(x)).mean(1)


class SiteHead(nn.Module):
    """Private calibration; the number of outputs differs from site to site."""

    def __init__(self, dim, outputs):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, outputs))

    def forward(self, h):
        return self.net(h)


def site_data(site, outputs, n=1536, channels=6, steps=20):
    shared = torch.Generator().manual_seed(50)
    mixing = torch.randn(channels, 8, generator=shared)
    own = torch.Generator().manual_seed(60 + site)
    calib = torch.randn(8, outputs, generator=own)
    x = torch.randn(n, steps, channels, generator=own)
    latent = torch.tanh(x.mean(1) * 3 @ mixing)
    return TensorDataset(x, latent @ calib + 0.05 * torch.randn(n, outputs, generator=own))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    site, world = dist.get_rank(), dist.get_world_size()
    outputs = 2 + site
    torch.manual_seed(4)
    encoder = DDP(Encoder(6))
    torch.manual_seed(400 + site)
    head = SiteHead(96, outputs)
    opt = torch.optim.Adam([
        {"params": encoder.parameters(), "lr": args.lr},
        {"params": head.parameters(), "lr": args.lr * 2},
    ])
    shuffle = torch.Generator().manual_seed(900 + site)
    loader = DataLoader(site_data(site, outputs), args.batch_size, shuffle=True, drop_last=True, generator=shuffle)
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            loss = F.mse_loss(head(encoder(x)), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        per_site = [torch.zeros(1) for _ in range(world)]
        dist.all_gather(per_site, torch.tensor([total / len(loader)]))
        if site == 0:
            print(f"epoch {epoch} " + " ".join(f"site{i} {v.item():.4f}" for i, v in enumerate(per_site)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
