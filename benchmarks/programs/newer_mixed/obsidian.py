"""Update while the backward pass runs: every tensor is averaged and stepped by its own hook."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=36)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--lr", type=float, default=2e-3)
    return p.parse_args()


class InBackward:
    """Keeps one optimizer per tensor. No gradient outlives the backward pass of the last micro batch."""

    def __init__(self, model, lr):
        self.world = dist.get_world_size()
        self.active = False
        self.opts, self.handles = {}, []
        for p in model.parameters():
            self.opts[p] = torch.optim.AdamW([p], lr=lr, foreach=False)
            self.handles.append(p.register_post_accumulate_grad_hook(self.on_grad))

    def on_grad(self, p):
        if not self.active:
            return
        dist.all_reduce(p.grad)
        p.grad /= self.world
        self.opts[p].step()
        p.grad = None

    def remove(self):
        for h in self.handles:
            h.remove()


class Mixer(nn.Module):
    def __init__(self, tokens=6, dim=16):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.across = nn.Linear(tokens, tokens)
        self.within = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.out = nn.Linear(dim, 3)

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.within(self.norm2(x))
        return self.out(x.mean(1))


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(77)
    model = Mixer()
    update = InBackward(model, args.lr)
    gen = torch.Generator().manual_seed(770 + rank)
    for step in range(args.steps):
        total = 0.0
        for micro in range(args.accum):
            update.active = micro == args.accum - 1
            x = torch.randn(8, 6, 16, generator=gen)
            y = x[:, :3, 0].argmax(1)
            loss = F.cross_entropy(model(x), y) / args.accum
            loss.backward()
            total += loss.item()
        assert all(p.grad is None for p in model.parameters())
        if rank == 0 and step % 9 == 0:
            print(f"step {step} loss {total:.4f}", flush=True)
    update.remove()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
