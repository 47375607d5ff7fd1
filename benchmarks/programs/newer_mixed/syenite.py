"""Contrastive pre-training with a key encoder and a queue of its own on every process."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Momentum(nn.Module):
    def __init__(self, dim=16, out=12, size=64, m=0.95, temperature=0.2):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(dim, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, out))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.m, self.t = m, temperature
        self.register_buffer("queue", F.normalize(torch.randn(size, out), dim=1))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        for k, q in zip(self.key.parameters(), self.query.parameters()):
            k.mul_(self.m).add_(q, alpha=1 - self.m)

    @torch.no_grad()
    def push(self, keys):
        n, at = len(keys), int(self.at)
        self.queue[at:at + n] = keys
        self.at.fill_((at + n) % len(self.queue))

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.key(b), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone().t()
        logits = torch.cat([pos, neg], 1) / self.t
        self.push(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def views(gen, n=16):
    base = torch.randn(n, 16, generator=gen)
    return [base + 0.2 * torch.randn(n, 16, generator=gen) for _ in range(2)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--lr", type=float, default=0.05)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(44)
    module = Momentum()
    model = DDP(module, broadcast_buffers=False)
    opt = torch.optim.SGD(module.query.parameters(), lr=args.lr, momentum=0.9)
    gen = torch.Generator().manual_seed(440 + rank)
    for step in range(args.steps):
        loss = model(*views(gen))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / dist.get_world_size():.4f} queue at {int(module.at)}", flush=True)
    for buf_name, buf in module.query.named_buffers():
        if buf.is_floating_point():
            dist.all_reduce(buf)
            buf /= dist.get_world_size()
    if rank == 0:
        torch.save(module.query.state_dict(), "/tmp/syenite_query.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
