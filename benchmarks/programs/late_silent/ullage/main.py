"""Fully sharded training of a small encoder on a copy-and-count task (FSDP2)."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradtools import clip_sharded


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, h):
        a = self.n1(h)
        h = h + self.attn(a, a, a, need_weights=False)[0]
        return h + self.ff(self.n2(h))


class Counter(nn.Module):
    """Says, for each position, how often its symbol occurs in the row."""

    def __init__(self, symbols, length, d=32, depth=2):
        super().__init__()
        self.tok = nn.Embedding(symbols, d)
        self.pos = nn.Parameter(torch.zeros(length, d))
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(depth))
        self.head = nn.Linear(d, length + 1)

    def forward(self, x):
        h = self.tok(x) + self.pos
        for b in self.blocks:
            h = b(h)
        return self.head(h)


def batch(n, symbols, length, gen):
    x = torch.randint(0, symbols, (n, length), generator=gen)
    y = (x.unsqueeze(2) == x.unsqueeze(1)).sum(2)
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--symbols", type=int, default=6)
    ap.add_argument("--length", type=int, default=12)
    ap.add_argument("--clip", type=float, default=0.3)
    ap.add_argument("--lr", type=float, default=0.25)
    ap.add_argument("--seed", type=int, default=2)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    torch.manual_seed(args.seed)
    model = Counter(args.symbols, args.length)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
    gen = torch.Generator().manual_seed(args.seed * 50 + rank)

    for step in range(1, args.steps + 1):
        x, y = batch(args.batch, args.symbols, args.length, gen)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        norm = clip_sharded(model.parameters(), args.clip)
        opt.step()
        warm.step()
        if step % 20 == 0:
            acc = (logits.argmax(-1) == y).float().mean()
            stat = torch.stack([loss.detach(), acc])
            dist.all_reduce(stat)
            if rank == 0:
                print(f"step {step} ce {stat[0] / world:.4f} acc {stat[1] / world:.3f} gnorm {norm:.3f}", flush=True)

    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(full, args.out / "counter.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
