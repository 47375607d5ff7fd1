"""Adapters on a frozen trunk; their gradients travel in one flat buffer."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="[%(name)s] %(message)s")
log = logging.getLogger("burin")


class Block(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.lin = nn.Linear(dim, dim)
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        h = self.norm(x)
        return x + F.gelu(self.lin(h) + self.up(self.down(h)))


class Stack(nn.Module):
    def __init__(self, dim=20, depth=4, rank=3, classes=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, rank) for _ in range(depth))
        self.head = nn.Linear(dim, classes)
        for name, p in self.named_parameters():
            p.requires_grad_(any(k in name for k in ("down", "up", "norm", "head")))

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class FlatReducer:
    """Packs the gradients of the trainable tensors, averages the buffer and unpacks it."""

    def __init__(self, model):
        self.table = dict(model.named_parameters())
        trainable = {n for n, p in self.table.items() if p.requires_grad}
        self.names = sorted(trainable)
        self.buffer = torch.zeros(sum(self.table[n].numel() for n in self.names))

    def __call__(self):
        at = 0
        for n in self.names:
            g = self.table[n].grad
            self.buffer[at:at + g.numel()].copy_(g.reshape(-1))
            at += g.numel()
        dist.all_reduce(self.buffer)
        self.buffer /= dist.get_world_size()
        at = 0
        for n in self.names:
            g = self.table[n].grad
            g.copy_(self.buffer[at:at + g.numel()].view_as(g))
            at += g.numel()


def batch(gen, n):
    x = torch.randn(n, 20, generator=gen)
    return x, (x[:, :3].abs()).argmax(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--lr", type=float, default=0.05)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = Stack()
    reduce_gradients = FlatReducer(model)
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=args.lr, momentum=0.9)
    gen = torch.Generator().manual_seed(60 + rank)
    for step in range(args.steps):
        x, y = batch(gen, args.batch)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        reduce_gradients()
        opt.step()
        if step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                log.info("step %d loss %.4f", step, mean.item() / dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
