"""Shared trunk, one task per rank: the trunk is averaged, each rank has its own head."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TASKS = ("regression", "three-way", "binary")
OUT = (1, 3, 1)


class Trunk(nn.Module):
    def __init__(self, dim=18, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width))

    def forward(self, x):
        return self.net(x)


class Task:
    """Data source and loss of this rank's task; batch sizes differ by task."""

    SIZES = (16, 48, 24)

    def __init__(self, index, dim=18):
        self.kind = TASKS[index]
        self.size = self.SIZES[index]
        self.gen = torch.Generator().manual_seed(70 + index)
        self.w = torch.randn(dim, 3, generator=torch.Generator().manual_seed(index))

    def batch(self):
        x = torch.randn(self.size, len(self.w), generator=self.gen)
        raw = torch.tanh(x) @ self.w
        if self.kind == "regression":
            return x, raw[:, :1]
        if self.kind == "three-way":
            return x, raw.argmax(1)
        return x, (raw[:, :1] > 0).float()

    def loss(self, out, y):
        if self.kind == "regression":
            return 0.2 * F.mse_loss(out, y)
        if self.kind == "three-way":
            return F.cross_entropy(out, y)
        return F.binary_cross_entropy_with_logits(out, y)


def save_all(trunk, head, rank):
    """Rank 0 collects the heads; the trunk is the same everywhere."""
    heads = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object({k: v.clone() for k, v in head.state_dict().items()}, heads, dst=0)
    if rank == 0:
        return {"trunk": trunk.state_dict(), "heads": dict(zip(TASKS, heads))}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--head-lr", type=float, default=5e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    task = Task(rank)
    torch.manual_seed(2)
    trunk = DDP(Trunk())
    head = nn.Linear(48, OUT[rank])
    opt = torch.optim.AdamW([
        {"params": trunk.parameters(), "lr": args.lr},
        {"params": head.parameters(), "lr": args.head_lr * (1 + rank)},
    ])
    for step in range(args.steps):
        x, y = task.batch()
        loss = task.loss(head(trunk(x)), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trunk.parameters(), 1.0)
        opt.step()
        if step % 25 == 0:
            box = [None] * dist.get_world_size()
            dist.all_gather_object(box, (task.kind, round(loss.item(), 4)))
            if rank == 0:
                print(f"step {step} {dict(box)}", flush=True)
    bundle = save_all(trunk.module, head, rank)
    if rank == 0:
        print("stored heads:", sorted(bundle["heads"]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
