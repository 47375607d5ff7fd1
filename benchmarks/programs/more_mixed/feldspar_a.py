"""Sharded language-model pretraining with a hand-written gradient clip."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Layer(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab=40, d=32, depth=2, ctx=24):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.layers = nn.ModuleList(Layer(d) for _ in range(depth))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for l in self.layers:
            x = l(x)
        return self.head(x)


@torch.no_grad()
def clip_gradients(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    local = [g.to_local() if isinstance(g, DTensor) else g for g in grads]
    sq = torch.stack([g.float().pow(2).sum() for g in local]).sum()
    total = sq.sqrt()
    coef = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for g in local:
        g.mul_(coef)
    return total


def batches(rank, n, bs, ctx, vocab):
    g = torch.Generator().manual_seed(31 + rank)
    for _ in range(n):
        start = torch.randint(0, vocab, (bs, 1), generator=g)
        stride = torch.randint(1, 4, (bs, 1), generator=g)
        yield (start + stride * torch.arange(ctx + 1)) % vocab


def lr_at(step, total, peak):
    return peak * min(1.0, (step + 1) / 5) * 0.5 * (1 + math.cos(math.pi * step / total))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--max-norm", type=float, default=0.3)
    ap.add_argument("--lr", type=float, default=0.3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = GPT()
    for l in model.layers:
        fully_shard(l, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for step, ids in enumerate(batches(rank, args.steps, 8, 24, 40)):
        for grp in opt.param_groups:
            grp["lr"] = lr_at(step, args.steps, args.lr)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        norm = clip_gradients(list(model.parameters()), args.max_norm)
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} gnorm {norm.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
