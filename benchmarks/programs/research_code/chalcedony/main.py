"""Language-like sequence classification with a hand-written expert-parallel layer."""
import argparse
import time
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from moe import MoELayer


@dataclass
class Args:
    dim: int = 40
    experts: int = 4
    hidden: int = 64
    vocab: int = 60
    length: int = 12
    classes: int = 6
    batch: int = 64
    epochs: int = 3
    lr: float = 3e-3
    aux: float = 0.01
    seed: int = 5


class Net(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.dim)
        self.mix = nn.GRU(a.dim, a.dim, batch_first=True)
        self.moe = MoELayer(a.dim, a.hidden, a.experts, seed=a.seed)
        self.norm = nn.LayerNorm(a.dim)
        self.head = nn.Linear(a.dim, a.classes)

    def forward(self, x):
        h = self.mix(self.emb(x))[0][:, -1]
        y, aux = self.moe(h)
        return self.head(self.norm(h + y)), aux


def make_data(a, n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, a.vocab, (n, a.length), generator=g)
    w = torch.randn(a.vocab, a.classes, generator=torch.Generator().manual_seed(77))
    y = (w[x].sum(1) + 0.3 * torch.randn(n, a.classes, generator=g)).argmax(-1)
    return TensorDataset(x, y)


def sync_gradients(model, world):
    """Average replicated weights over ranks. Expert weights already saw every token of the global batch."""
    flat = []
    for name, p in model.named_parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if ".experts." in name:
            p.grad.div_(world)
            continue
        flat.append(p.grad)
    buf = torch.cat([g.reshape(-1) for g in flat])
    dist.all_reduce(buf)
    buf.div_(world)
    off = 0
    for g in flat:
        g.copy_(buf[off:off + g.numel()].view_as(g))
        off += g.numel()


def global_clip(model, limit):
    """Norm over replicated weights once and over the experts of all ranks."""
    sq = torch.zeros(2)
    for name, p in model.named_parameters():
        sq[1 if ".experts." in name else 0] += p.grad.pow(2).sum()
    dist.all_reduce(sq[1:])
    dist.broadcast(sq, 0)
    coef = (limit / (sq.sum().sqrt() + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(coef)
    return sq.sum().sqrt().item()


@torch.no_grad()
def evaluate(model, ds, a):
    model.eval()
    r, w = dist.get_rank(), dist.get_world_size()
    x, y = ds.tensors
    per = len(x) // w
    logits, _ = model(x[r * per:(r + 1) * per])
    hit = (logits.argmax(-1) == y[r * per:(r + 1) * per]).float().sum()
    dist.all_reduce(hit)
    model.train()
    return (hit / (per * w)).item()


def main():
    ap = argparse.ArgumentParser()
    for f in fields(Args):
        ap.add_argument(f"--{f.name}", type=f.type, default=f.default)
    a = Args(**vars(ap.parse_args()))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(a.seed)
    model = Net(a)
    train, test = make_data(a, 1280, 1), make_data(a, 256, 2)
    sampler = DistributedSampler(train, seed=a.seed)
    loader = DataLoader(train, batch_size=a.batch // world, sampler=sampler, drop_last=True)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, a.lr, total_steps=a.epochs * len(loader))
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        run, load, t0 = torch.zeros(2), torch.zeros(a.experts), time.time()
        for x, y in loader:
            logits, aux = model(x)
            ce = F.cross_entropy(logits, y)
            opt.zero_grad(set_to_none=True)
            (ce + a.aux * aux).backward()
            sync_gradients(model, world)
            global_clip(model, 2.0)
            opt.step()
            sched.step()
            run += torch.stack([ce.detach(), torch.tensor(1.0)])
            load += model.moe.last_load
        dist.all_reduce(run)
        acc = evaluate(model, test, a)
        if rank == 0:
            share = " ".join(f"{v:.2f}" for v in (load / load.sum()).tolist())
            print(f"epoch {epoch} ce {run[0] / run[1]:.4f} acc {acc:.3f} load [{share}] {time.time() - t0:.1f}s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
