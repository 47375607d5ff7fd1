"""Audio-like VQ tokenizer: conv encoder/decoder, codebook kept by exponential moving averages."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class EuclideanCodebook(nn.Module):
    def __init__(self, dim, size, decay=0.9, eps=1e-5):
        super().__init__()
        self.decay, self.eps, self.size = decay, eps, size
        embed = torch.randn(size, dim) * 0.3
        self.register_buffer("embed", embed)
        self.register_buffer("embed_avg", embed.clone())
        self.register_buffer("cluster_size", torch.ones(size))

    def quantize(self, flat):
        d = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed.t() + self.embed.pow(2).sum(1)
        return d.argmin(1)

    @torch.no_grad()
    def update(self, flat, codes):
        onehot = F.one_hot(codes, self.size).type(flat.dtype)
        counts = onehot.sum(0)
        sums = onehot.t() @ flat
        self.cluster_size.lerp_(counts, 1 - self.decay)
        self.embed_avg.lerp_(sums, 1 - self.decay)
        n = self.cluster_size.sum()
        smoothed = (self.cluster_size + self.eps) / (n + self.size * self.eps) * n
        self.embed.copy_(self.embed_avg / smoothed.unsqueeze(1))

    def forward(self, x):
        b, c, t = x.shape
        flat = x.transpose(1, 2).reshape(-1, c)
        codes = self.quantize(flat.detach())
        q = self.embed[codes].view(b, t, c).transpose(1, 2)
        if self.training:
            self.update(flat.detach(), codes)
        commit = F.mse_loss(x, q.detach())
        return x + (q - x).detach(), commit, codes


class Tokenizer(nn.Module):
    def __init__(self, dim=16, size=32):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(1, 16, 7, 2, 3), nn.ELU(), nn.Conv1d(16, dim, 7, 4, 3))
        self.vq = EuclideanCodebook(dim, size)
        self.dec = nn.Sequential(nn.ConvTranspose1d(dim, 16, 8, 4, 2), nn.ELU(), nn.ConvTranspose1d(16, 1, 4, 2, 1))

    def forward(self, wav):
        z = self.enc(wav)
        q, commit, codes = self.vq(z)
        return self.dec(q), commit, codes


def waves(gen, n=8, length=256):
    f = torch.rand(n, 1, generator=gen) * 0.4 + 0.05
    ph = torch.rand(n, 1, generator=gen) * 6.28
    return torch.sin(f * torch.arange(length) + ph).unsqueeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--beta", type=float, default=0.25)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Tokenizer(), broadcast_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(args.steps):
        wav = waves(gen)
        rec, commit, codes = model(wav)
        loss = F.l1_loss(rec, wav) + args.beta * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} codes in use {codes.unique().numel()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
