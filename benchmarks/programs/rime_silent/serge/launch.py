import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from engine import Engine


class Tagger(nn.Module):
    """Mean-pooled hashed bag of features with wide tables."""

    def __init__(self, features=6000, dim=256, classes=20):
        super().__init__()
        self.table = nn.Parameter(torch.randn(features, dim) * 0.05)
        self.mlp = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, classes))

    def forward(self, idx):
        return self.mlp(self.table[idx].mean(1))


def corpus(n, seed, features=6000, classes=20):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    own = y[:, None] * (features // classes) + torch.randint(features // classes, (n, 6), generator=g)
    noise = torch.randint(features, (n, 18), generator=g)
    return TensorDataset(torch.cat([own, noise], 1), y)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--docs", type=int, default=4096)
    p.add_argument("--micro-batch", type=int, default=16)
    p.add_argument("--accumulate", type=int, default=8)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=5)
    return p.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    train, test = corpus(args.docs, 0), corpus(512, 1)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, args.micro_batch, sampler=sampler)
    test_loader = DataLoader(test, 64, sampler=DistributedSampler(test, shuffle=False))
    assert len(loader) % args.accumulate == 0

    model = DistributedDataParallel(Tagger(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    updates = args.epochs * len(loader) // args.accumulate
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=updates + 1)
    engine = Engine(model, optimizer, scheduler, args.accumulate, args.clip)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss, seconds = engine.run_epoch(loader)
        acc = engine.evaluate(test_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f} acc {acc:.3f} | {seconds:.1f}s, "
                  f"{len(loader) / seconds:.1f} micro-batches/s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
