"""Two-view contrastive pretraining with negatives from every rank, then a linear probe."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class GatherLayer(torch.autograd.Function):
    """All-gather whose backward hands every rank the summed gradient of its own rows."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


class NTXent(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, a, b):
        n, rank = len(a), dist.get_rank()
        a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
        all_a, all_b = GatherLayer.apply(a), GatherLayer.apply(b)
        total = len(all_a)
        mine = torch.arange(n) + rank * n

        def half(query, same, other):
            logits = torch.cat([query @ other.t(), query @ same.t()], 1) / self.temperature
            self_cols = mine + total
            mask = torch.zeros_like(logits, dtype=torch.bool)
            mask[torch.arange(n), self_cols] = True
            logits = logits.masked_fill(mask, float("-inf"))
            return F.cross_entropy(logits, mine), (logits.argmax(1) == mine).float().mean()

        l1, acc1 = half(a, all_a, all_b)
        l2, acc2 = half(b, all_b, all_a)
        return (l1 + l2) / 2, (acc1 + acc2) / 2


class Encoder(nn.Module):
    def __init__(self, fan_in=32, width=96, out=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(fan_in, width), nn.LayerNorm(width), nn.ReLU(),
                                   nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, x):
        return self.head(self.trunk(x))


def signals(n, seed, classes=8):
    proto = torch.randn(classes, 32, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    x = proto[y] + 0.7 * torch.randn(n, 32, generator=g)
    return TensorDataset(x, y)


def view(x, gen):
    keep = (torch.rand(x.shape, generator=gen) > 0.15).float()
    gain = 0.8 + 0.4 * torch.rand(len(x), 1, generator=gen)
    return x * keep * gain + 0.25 * torch.randn(x.shape, generator=gen)


def pretrain(args, model, train, rank, world, gen):
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler, drop_last=True)
    criterion = NTXent(args.temperature)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        tally = torch.zeros(3)
        for x, _ in loader:
            n = len(x)
            z = model(torch.cat([view(x, gen), view(x, gen)]))
            loss, acc = criterion(z[:n], z[n:])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            tally += torch.tensor([loss.item(), acc.item(), 1.0])
        dist.all_reduce(tally)
        if rank == 0:
            print(f"epoch {epoch} loss {(tally[0] / tally[2]).item():.4f} "
                  f"match {(tally[1] / tally[2]).item():.3f} against {2 * world * args.batch - 2} negatives", flush=True)


def probe(encoder, train, test):
    """Runs on one rank: ridge regression on frozen features."""
    encoder.eval()
    with torch.no_grad():
        ft, fv = encoder.trunk(train.tensors[0]), encoder.trunk(test.tensors[0])
        mean, std = ft.mean(0), ft.std(0) + 1e-6
        ft, fv = (ft - mean) / std, (fv - mean) / std
        ft, fv = F.pad(ft, (0, 1), value=1.0), F.pad(fv, (0, 1), value=1.0)
        target = F.one_hot(train.tensors[1], 8).float()
        w = torch.linalg.solve(ft.t() @ ft + 10.0 * torch.eye(ft.shape[1]), ft.t() @ target)
        return ((fv @ w).argmax(1) == test.tensors[1]).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--temperature", type=float, default=0.3)
    ap.add_argument("--seed", type=int, default=23)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = DDP(Encoder())
    gen = torch.Generator().manual_seed(args.seed * 77 + rank)
    train, test = signals(1536, 1), signals(512, 2)
    pretrain(args, model, train, rank, world, gen)
    if rank == 0:
        acc = probe(model.module, train, test)
        os.makedirs("runs/sumac", exist_ok=True)
        torch.save(model.module.state_dict(), "runs/sumac/encoder.pt")
        print(f"linear probe accuracy {acc:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
