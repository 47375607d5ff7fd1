"""Tensor-parallel transformer classifier; mesh is (data, model)."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset, DistributedSampler

logger = logging.getLogger("tp")


@dataclass
class Config:
    vocab: int = 40
    length: int = 14
    dim: int = 48
    ffn: int = 96
    depth: int = 2
    heads: int = 4
    classes: int = 5
    tp: int = 2
    batch: int = 32
    epochs: int = 3
    lr: float = 3e-3
    clip: float = 1.0
    seed: int = 12


class Patterns(Dataset):
    def __init__(self, cfg, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randint(0, cfg.vocab, (n, cfg.length), generator=g)
        v = torch.randn(cfg.vocab, cfg.classes, generator=torch.Generator().manual_seed(3))
        self.y = v[self.x].sum(1).argmax(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.hd = heads, d // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, self.hd).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, -1)
        return self.wo(o)


class MLP(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.w1, self.w2 = nn.Linear(d, h, bias=False), nn.Linear(h, d, bias=False)

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.attn, self.mlp = Attention(c.dim, c.heads), MLP(c.dim, c.ffn)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.depth))
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.classes)

    def forward(self, x):
        h = self.emb(x)
        for l in self.layers:
            h = l(h)
        return self.head(self.norm(h).mean(1))


def apply_tp(model, mesh):
    plan = {"attn.wq": ColwiseParallel(), "attn.wk": ColwiseParallel(), "attn.wv": ColwiseParallel(),
            "attn.wo": RowwiseParallel(), "mlp.w1": ColwiseParallel(), "mlp.w2": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    return model


def reduce_over_data(model, group, size):
    if size == 1:
        return
    for p in model.parameters():
        g = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        dist.all_reduce(g, group=group)
        g.div_(size)


def clip_(model, limit, tp_group):
    """Sharded weights count over the model axis, replicated ones once."""
    shard, full = torch.zeros(()), torch.zeros(())
    for p in model.parameters():
        if isinstance(p.grad, DTensor):
            shard += p.grad.to_local().pow(2).sum()
        else:
            full += p.grad.pow(2).sum()
    dist.all_reduce(shard, group=tp_group)
    coef = (limit / ((shard + full).sqrt() + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        (p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad).mul_(coef)
    return coef.item()


def make_loader(ds, cfg, mesh, train):
    sampler = DistributedSampler(ds, num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank(), shuffle=train,
                                 seed=cfg.seed, drop_last=train)
    return DataLoader(ds, cfg.batch, sampler=sampler, drop_last=train), sampler


@torch.no_grad()
def accuracy(model, loader, group):
    model.eval()
    t = torch.zeros(2)
    for x, y in loader:
        t += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float)
    dist.all_reduce(t, group=group)
    model.train()
    return (t[0] / t[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tp", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=3)
    a = ap.parse_args()
    cfg = Config(tp=a.tp, epochs=a.epochs)
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // cfg.tp, cfg.tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(cfg.seed)
    model = apply_tp(Model(cfg), mesh["tp"])
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, foreach=False)
    loader, sampler = make_loader(Patterns(cfg, 1152, 1), cfg, mesh, True)
    test, _ = make_loader(Patterns(cfg, 256, 2), cfg, mesh, False)
    total = cfg.epochs * len(loader)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        s = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            reduce_over_data(model, mesh.get_group("dp"), mesh["dp"].size())
            clip_(model, cfg.clip, mesh.get_group("tp"))
            opt.step()
            sched.step()
            s += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(s, group=mesh.get_group("dp"))
        logger.info("epoch %d loss %.4f acc %.3f (dp %d tp %d, %d steps)", epoch, s[0] / s[1],
                    accuracy(model, test, mesh.get_group("dp")), world // cfg.tp, cfg.tp, len(loader))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
