import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class EuclideanCodebook(nn.Module):
    def __init__(self, size, dim, decay=0.9, eps=1e-5):
        super().__init__()
        self.decay, self.eps = decay, eps
        embed = torch.randn(size, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("embed_avg", embed.clone())
        self.register_buffer("cluster_size", torch.ones(size))

    def forward(self, x):
        dist2 = torch.cdist(x.detach(), self.embed)
        codes = dist2.argmin(1)
        quantized = self.embed[codes]
        if self.training:
            self.ema_update(x.detach(), codes)
        return quantized, codes

    @torch.no_grad()
    def ema_update(self, x, codes):
        onehot = F.one_hot(codes, self.embed.shape[0]).type_as(x)
        counts, sums = onehot.sum(0), onehot.t() @ x
        self.cluster_size.mul_(self.decay).add_(counts, alpha=1 - self.decay)
        self.embed_avg.mul_(self.decay).add_(sums, alpha=1 - self.decay)
        n = self.cluster_size.sum()
        smoothed = (self.cluster_size + self.eps) / (n + len(self.cluster_size) * self.eps) * n
        self.embed.copy_(self.embed_avg / smoothed.unsqueeze(1))


class Codec(nn.Module):
    def __init__(self, d_in=24, dim=8, codes=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d_in, 32), nn.ELU(), nn.Linear(32, dim))
        self.quantizer = EuclideanCodebook(codes, dim)
        self.decoder = nn.Sequential(nn.Linear(dim, 32), nn.ELU(), nn.Linear(32, d_in))

    def forward(self, x):
        z = self.encoder(x)
        q, _ = self.quantizer(z)
        commit = F.mse_loss(z, q)
        return self.decoder(z + (q - z).detach()), commit


def waves(n=432):
    g = torch.Generator().manual_seed(2)
    freq = torch.randint(1, 6, (n, 1), generator=g).float()
    t = torch.linspace(0, 3.14, 24)
    return TensorDataset(torch.sin(freq * t) + 0.1 * torch.randn(n, 24, generator=g))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--beta", type=float, default=0.25)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(42)
    model = DDP(Codec(), broadcast_buffers=False)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    ds = waves()
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=12, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        recon_sum = torch.zeros(())
        for (x,) in loader:
            recon, commit = model(x)
            rec_loss = F.mse_loss(recon, x)
            opt.zero_grad(set_to_none=True)
            (rec_loss + args.beta * commit).backward()
            opt.step()
            recon_sum += rec_loss.detach()
        dist.all_reduce(recon_sum)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} recon {recon_sum.item() / len(loader) / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
