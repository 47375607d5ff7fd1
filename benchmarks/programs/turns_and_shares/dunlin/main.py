"""Metric learning for bird calls; recording stations hold different numbers of held-out calls."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from retrieval import recall_at


def calls(count, species, seed, noise):
    shape = torch.Generator().manual_seed(777)
    freq = torch.rand(species, 3, generator=shape) * 2 + 0.2
    amp = torch.rand(species, 3, generator=shape) + 0.3
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(species, (count,), generator=g)
    t = torch.arange(40).float()
    phase = torch.rand(count, 3, 1, generator=g) * 6.28
    x = (amp[y].unsqueeze(-1) * torch.sin(freq[y].unsqueeze(-1) * t + phase)).sum(1)
    return x + noise * torch.randn(count, 40, generator=g), y


def station_part(x, y, rank, world):
    """Later stations keep fewer recordings."""
    weights = [1 / (1 + 1.6 * s) for s in range(world)]
    edges = [0]
    for w in weights:
        edges.append(edges[-1] + w / sum(weights) * len(y))
    lo, hi = round(edges[rank]), round(edges[rank + 1])
    return x[lo:hi], y[lo:hi]


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 16, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2),
                                  nn.Conv1d(16, 32, 5, padding=2), nn.ReLU())
        self.out = nn.Linear(64, width)

    def forward(self, x):
        h = self.conv(x.unsqueeze(1))
        h = torch.cat([h.mean(-1), h.amax(-1)], 1)
        return F.normalize(self.out(h), dim=1)


def contrastive(v, y, temperature):
    near = v @ v.t() / temperature
    own = torch.eye(len(v), dtype=torch.bool)
    same = (y[:, None] == y[None]) & ~own
    logp = near.masked_fill(own, -1e9).log_softmax(1)
    has = same.any(1)
    return -(logp * same).sum(1)[has].div(same.sum(1)[has]).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--species", type=int, default=24)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--width", type=int, default=24)
    ap.add_argument("--temperature", type=float, default=0.2)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=33)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "calls_b"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = Encoder(args.width)
    ddp = DistributedDataParallel(model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train = TensorDataset(*calls(2048, args.species, 1, noise=0.7))
    held_x, held_y = station_part(*calls(216, args.species, 2, noise=0.7), rank, world)
    sampler = DistributedSampler(train, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)

    best = -1.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in loader:
            loss = contrastive(ddp(x), y, args.temperature)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        recall = recall_at(model, held_x, held_y)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader) / world:.4f} "
                  + " ".join(f"recall@{k} {v:.3f}" for k, v in recall.items()), flush=True)
        if recall[1] > best:
            best = recall[1]
            if rank == 0:
                os.makedirs(args.out, exist_ok=True)
                torch.save({"epoch": epoch, "recall": recall, "model": model.state_dict()},
                           os.path.join(args.out, "calls.pt"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
