"""Fine-tuning a small decoder with fully sharded parameters."""
import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class ModelArgs:
    vocab: int = 96
    dim: int = 128
    heads: int = 4
    depth: int = 3
    max_len: int = 48


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.heads
        self.norm1, self.norm2 = RMSNorm(a.dim), RMSNorm(a.dim)
        self.qkv = nn.Linear(a.dim, 3 * a.dim, bias=False)
        self.proj = nn.Linear(a.dim, a.dim, bias=False)
        self.up = nn.Linear(a.dim, 4 * a.dim, bias=False)
        self.down = nn.Linear(4 * a.dim, a.dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tok = nn.Embedding(a.vocab, a.dim)
        self.pos = nn.Embedding(a.max_len, a.dim)
        nn.init.normal_(self.pos.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.depth))
        self.norm = RMSNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


class Dialogues(Dataset):
    """Token walks where every pair of tokens allows a few continuations."""

    def __init__(self, n, vocab, length=47, branch=2, seed=0):
        g = torch.Generator().manual_seed(seed)
        table = torch.randint(0, vocab, (vocab, branch), generator=torch.Generator().manual_seed(81))
        ids = torch.zeros(n, length, dtype=torch.long)
        ids[:, 0] = torch.randint(0, vocab, (n,), generator=g)
        for t in range(1, length):
            turn = torch.randint(0, branch, (n,), generator=g)
            ids[:, t] = table[ids[:, t - 1], turn]
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i]


def build(a, mesh, dtype):
    torch.manual_seed(17)
    model = Decoder(a)
    model = model.to(dtype)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for blk in model.blocks:
        fully_shard(blk, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--dtype", default="bfloat16")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    a = ModelArgs()
    model = build(a, init_device_mesh("cpu", (world,)), getattr(torch, args.dtype))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)

    ds = Dialogues(1280, a.vocab)
    sampler = DistributedSampler(ds, shuffle=True, drop_last=True)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)
    total = args.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 8) * max(0.1, 1 - s / total))

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids in loader:
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            step += 1
            if step % 16 == 0:
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                if rank == 0:
                    print(f"step {step} loss {mean.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
