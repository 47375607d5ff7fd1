import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset

GENES = 96


class Expression(Dataset):
    def __init__(self, n=2240, seed=8):
        g = torch.Generator().manual_seed(seed)
        rates = torch.rand(n, GENES, generator=g) * 20 + 8
        self.counts = torch.poisson(rates, generator=g).clamp_min(1)
        self.label = (self.counts[:, :8].sum(-1) > self.counts[:, 8:16].sum(-1)).long()
        self.counts[1672, 30:40] = 0

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.counts[i], self.label[i]


class Classifier(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.norm = nn.LayerNorm(GENES)
        self.encode = nn.Sequential(nn.Linear(GENES, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.head = nn.Linear(dim, 2)

    def forward(self, counts):
        x = counts.log1p()
        return self.head(self.encode(self.norm(x)))


def contiguous_shard(dataset, rank, world):
    per_rank = len(dataset) // world
    return Subset(dataset, range(rank * per_rank, (rank + 1) * per_rank))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    loader = DataLoader(contiguous_shard(Expression(), rank, world), batch_size=args.batch)
    model = DDP(Classifier())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    correct = total = 0
    for step, (counts, label) in enumerate(loader):
        logits = model(counts)
        loss = nn.functional.cross_entropy(logits, label)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        correct += (logits.argmax(-1) == label).sum().item()
        total += len(label)
        if step % 10 == 9:
            print(f"[{rank}] step {step + 1} loss {loss.item():.4f} acc {correct / total:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
