"""Shared feature layers, one personal head per hospital (FedPer)."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Shared(nn.Module):
    def __init__(self, inputs=16, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, x):
        return self.net(x)


class Hospital:
    """Local patients and the head which never leaves the house."""

    ICD_CODES = (3, 5, 4, 6)

    def __init__(self, index, patients=400):
        g = torch.Generator().manual_seed(900 + index)
        self.classes = self.ICD_CODES[index]
        self.x = torch.randn(patients, 16, generator=g) + 0.3 * index
        w = torch.randn(16, self.classes, generator=g)
        self.y = (self.x @ w).argmax(1)
        torch.manual_seed(50 + index)
        self.head = nn.Linear(32, self.classes)
        self.g = g

    def batch(self, n):
        i = torch.randint(0, len(self.x), (n,), generator=self.g)
        return self.x[i], self.y[i]


def average_gradients(module):
    world = dist.get_world_size()
    for p in module.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=60)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "fedper"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    shared = Shared()
    site = Hospital(rank)
    opt_shared = torch.optim.SGD(shared.parameters(), lr=0.1, momentum=0.9)
    opt_head = torch.optim.Adam(site.head.parameters(), lr=5e-3)
    for r in range(args.rounds):
        x, y = site.batch(args.batch)
        logits = site.head(shared(x))
        loss = F.cross_entropy(logits, y)
        opt_shared.zero_grad()
        opt_head.zero_grad()
        loss.backward()
        average_gradients(shared)
        opt_shared.step()
        opt_head.step()
        if (r + 1) % 20 == 0:
            acc = (logits.argmax(1) == y).float().mean()
            print(f"round {r + 1} site {rank} ({site.classes} codes) loss {loss.item():.3f} acc {acc:.2f}",
                  flush=True)
    os.makedirs(args.out, exist_ok=True)
    torch.save(site.head.state_dict(), os.path.join(args.out, f"head_{rank}.pt"))
    if rank == 0:
        torch.save(shared.state_dict(), os.path.join(args.out, "shared.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
