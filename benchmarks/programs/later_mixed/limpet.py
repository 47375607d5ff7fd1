"""Momentum contrast: slow key encoder, a queue of old keys, shuffled key batches."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, dim=20, out=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, out))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class KeyQueue:
    """Fills up at first, afterwards the oldest keys are replaced."""

    def __init__(self, limit):
        self.limit, self.chunks = limit, []

    def push(self, keys):
        self.chunks.append(keys)
        while sum(len(c) for c in self.chunks) > self.limit:
            self.chunks.pop(0)

    def all(self):
        return torch.cat(self.chunks) if self.chunks else None


def gather(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


@torch.no_grad()
def keys_of(slow, x):
    """Rows are mixed between the ranks so that batch statistics do not give the pair away."""
    rank, n = dist.get_rank(), len(x)
    pool = gather(x)
    order = torch.randperm(len(pool)) if rank == 0 else torch.empty(len(pool), dtype=torch.long)
    dist.broadcast(order, src=0)
    mine = order.view(-1, n)[rank]
    out = gather(slow(pool[mine]))
    back = torch.empty_like(out)
    back[order] = out
    return back[rank * n:(rank + 1) * n], back


@torch.no_grad()
def follow(slow, fast, m):
    for s, f in zip(slow.parameters(), fast.parameters()):
        s.mul_(m).add_(f, alpha=1 - m)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--queue", type=int, default=1024)
    ap.add_argument("--momentum", type=float, default=0.99)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    proto = torch.randn(100, 20)
    fast = Encoder()
    slow = copy.deepcopy(fast).requires_grad_(False)
    ddp = DDP(fast)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    queue = KeyQueue(args.queue)
    torch.manual_seed(1 + rank)

    for step in range(args.steps):
        base = proto[torch.randint(0, 100, (args.batch,))]
        left, right = (base + 0.3 * torch.randn_like(base) for _ in range(2))
        q = ddp(left)
        follow(slow, fast, args.momentum)
        k, every = keys_of(slow, right)
        logits = (q * k).sum(1, keepdim=True)
        old = queue.all()
        if old is not None:
            logits = torch.cat([logits, q @ old.t()], 1)
        loss = F.cross_entropy(logits / 0.2, torch.zeros(len(q), dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        queue.push(every)
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f} keys {len(queue.all())}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
