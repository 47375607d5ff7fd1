"""Low-communication training: inner AdamW on each worker, outer Nesterov on the averaged change."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, tokens * 2), nn.GELU(), nn.Linear(tokens * 2, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, x):
        x = x + self.token(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, vocab, length, classes, dim=64, depth=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(*[MixerBlock(length, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        return self.head(self.blocks(self.emb(ids)).mean(1))


class OuterOptimizer:
    """Holds the shared weights; every round applies the mean displacement of the workers."""

    def __init__(self, model, lr=0.7, momentum=0.9):
        self.model = model
        self.shared = [p.detach().clone() for p in model.parameters()]
        for t in self.shared:
            dist.broadcast(t, src=0)
        self.opt = torch.optim.SGD([nn.Parameter(t) for t in self.shared], lr=lr, momentum=momentum, nesterov=True)
        self.pull()

    @torch.no_grad()
    def pull(self):
        for p, q in zip(self.model.parameters(), self.opt.param_groups[0]["params"]):
            p.copy_(q)

    @torch.no_grad()
    def round(self):
        outer = self.opt.param_groups[0]["params"]
        delta = torch.cat([(q - p).reshape(-1) for p, q in zip(self.model.parameters(), outer)])
        dist.all_reduce(delta)
        delta /= dist.get_world_size()
        offset = 0
        for q in outer:
            q.grad = delta[offset:offset + q.numel()].view_as(q).clone()
            offset += q.numel()
        self.opt.step()
        self.opt.zero_grad()
        self.pull()


def make_data(n, vocab=32, length=16, classes=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (n, length), generator=g)
    w = torch.randn(vocab, classes, generator=torch.Generator().manual_seed(6))
    y = (w[ids].sum(1) + 1.5 * w[ids[:, 0]] * (ids[:, -1:] % 3 == 0)).argmax(1)
    return TensorDataset(ids, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--inner-steps", type=int, default=8)
    ap.add_argument("--inner-lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    ds, val = make_data(4096, seed=10), make_data(512, seed=11)
    model = Mixer(32, 16, 6)
    outer = OuterOptimizer(model)
    inner = torch.optim.AdamW(model.parameters(), lr=args.inner_lr)
    sampler = DistributedSampler(ds, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for ids, y in loader:
            loss = F.cross_entropy(model(ids), y)
            inner.zero_grad()
            loss.backward()
            inner.step()
            total += loss.item()
            step += 1
            if step % args.inner_steps == 0:
                outer.round()
        mean = torch.tensor(total / len(loader))
        dist.all_reduce(mean)
        if rank == 0:
            with torch.no_grad():
                acc = (model(val.tensors[0]).argmax(1) == val.tensors[1]).float().mean().item()
            print(f"epoch {epoch} loss {mean.item() / world:.4f} acc {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
