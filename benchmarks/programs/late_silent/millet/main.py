"""FSDP2 on a mixed machine: the first worker is thrice as fast and gets thrice the rows."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Gate(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(F.glu(self.up(self.norm(x)), dim=-1))


class Stack(nn.Module):
    def __init__(self, inputs, d, depth, classes):
        super().__init__()
        self.inp = nn.Linear(inputs, d)
        self.layers = nn.ModuleList(Gate(d) for _ in range(depth))
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


def blobs(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 8, (n,), generator=g)
    bits = torch.stack([(y >> b) & 1 for b in range(3)], 1).float() * 2 - 1
    z = torch.randn(n, 9, generator=g)
    z[:, 0] = z[:, 0].abs() * bits[:, 0] * z[:, 1].sign()
    z[:, 2] = z[:, 2].abs() * bits[:, 1]
    z[:, 4] = z[:, 4].abs() * bits[:, 2] * z[:, 5].sign()
    return z, y


def shares(total, speeds):
    cut = [round(total * sum(speeds[:i]) / sum(speeds)) for i in range(len(speeds) + 1)]
    return list(zip(cut[:-1], cut[1:]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--global-batch", type=int, default=64)
    ap.add_argument("--speeds", type=float, nargs="+", default=[3.0, 1.0])
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=29)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    speeds = (args.speeds + [1.0] * world)[:world]
    torch.manual_seed(args.seed)
    model = Stack(9, 32, 2, 8)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    x, y = blobs(8192, args.seed)
    lo, hi = shares(args.global_batch, speeds)[rank]

    for step in range(1, args.steps + 1):
        g = torch.Generator().manual_seed(args.seed * 777 + step)
        rows = torch.randperm(len(x), generator=g)[:args.global_batch][lo:hi]
        logits = model(x[rows])
        ce = F.cross_entropy(logits, y[rows], reduction="sum")
        # the shard average divides by the number of workers, hence the factor
        loss = ce * world / args.global_batch
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        if step % 30 == 0:
            stat = torch.tensor([ce.item(), (logits.argmax(1) == y[rows]).sum().item()])
            dist.all_reduce(stat)
            if rank == 0:
                print(f"step {step} ce {stat[0] / args.global_batch:.4f} acc {stat[1] / args.global_batch:.3f} rows {hi - lo}", flush=True)
    full = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in model.state_dict().items()}
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(full, args.out / "stack.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
