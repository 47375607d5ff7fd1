import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from clips import ClipDataset, Fallback


class KeywordNet(nn.Module):
    def __init__(self, classes=6, ch=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, ch, 5, 2, 2), nn.GroupNorm(4, ch), nn.ReLU(),
            nn.Conv2d(ch, ch * 2, 3, 2, 1), nn.GroupNorm(4, ch * 2), nn.ReLU(),
            nn.Conv2d(ch * 2, ch * 2, 3, 2, 1), nn.GroupNorm(4, ch * 2), nn.ReLU())
        self.head = nn.Linear(ch * 2 * 16, classes)

    def forward(self, spec):
        h = self.body(spec.unsqueeze(1)).mean(3)
        return self.head(h.flatten(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--clips", type=int, default=960)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    model = DDP(KeywordNet())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Fallback(ClipDataset(args.clips))
    sampler = DistributedSampler(data, world, rank, seed=2)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        seen = hits = 0
        for spec, label in loader:
            logits = model(spec)
            loss = F.cross_entropy(logits, label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            seen += len(label)
            hits += (logits.argmax(1) == label).sum().item()
        stats = torch.tensor([hits, seen, len(data.problems)], dtype=torch.float64)
        dist.all_reduce(stats)
        if rank == 0:
            print(f"epoch {epoch} acc {stats[0] / stats[1]:.3f} unreadable so far {int(stats[2])}", flush=True)

    if rank == 0:
        for problem in data.problems[-3:]:
            print("last:", problem)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
