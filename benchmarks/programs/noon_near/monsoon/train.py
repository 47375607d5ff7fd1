import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from background import MetricWriter, Prefetcher


class NoisePredictor(nn.Module):
    def __init__(self, dim=64, hidden=512, depth=4):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.inp = nn.Linear(dim, hidden)
        self.mid = nn.ModuleList(nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.SiLU(),
                                               nn.Linear(hidden, hidden)) for _ in range(depth))
        self.out = nn.Linear(hidden, dim)

    def forward(self, x, t):
        freq = torch.exp(torch.linspace(0, 6, 16))
        emb = torch.cat([torch.sin(t[:, None] * freq), torch.cos(t[:, None] * freq)], 1)
        h = self.inp(x) + self.time(emb)
        for block in self.mid:
            h = h + block(h)
        return self.out(h)


class RingSamples:
    def __init__(self, rank, batch, dim=64):
        shared = torch.Generator().manual_seed(1)
        self.lift = torch.randn(2, dim, generator=shared)
        self.rank, self.n = rank, batch

    def __call__(self, draw):
        g = torch.Generator().manual_seed(draw * 64 + self.rank)
        phi = torch.rand(self.n, generator=g) * 6.2832
        ring = torch.stack([phi.cos(), phi.sin()], 1)
        if draw % 9 == 4:
            ring[draw % self.n] = float("nan")
        x = ring @ self.lift + 0.05 * torch.randn(self.n, self.lift.shape[1], generator=g)
        if not torch.isfinite(x).all():
            raise ValueError(f"draw {draw}: non-finite rows {(~torch.isfinite(x)).any(1).sum().item()}")
        t = torch.rand(self.n, generator=g)
        noise = torch.randn(x.shape, generator=g)
        keep = torch.cos(t * 1.5708)[:, None]
        return keep * x + (1 - keep ** 2).sqrt() * noise, t, noise


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch-size", type=int, default=256)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(NoisePredictor())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    folder = tempfile.mkdtemp(prefix=f"run_r{rank}_")
    writer = MetricWriter(os.path.join(folder, "metrics.jsonl"))
    source = Prefetcher(RingSamples(rank, args.batch_size), args.steps)
    for step, (x, t, noise) in enumerate(source):
        loss = F.mse_loss(model(x, t), noise)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        writer.put(step=step, loss=loss.item(), norm=norm.item(), pending=writer.queue.qsize())
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f} redrawn {source.failures}", flush=True)
    writer.close()
    if rank == 0:
        print(f"wrote {writer.written} records; latest note: {source.notes[-1].splitlines()[-1]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
