"""Sparse gradient exchange: every rank sends its largest entries, the rest waits for later."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class TopK:
    def __init__(self, params, share):
        self.params = list(params)
        self.world = dist.get_world_size()
        n = sum(p.numel() for p in self.params)
        self.k = max(1, int(share * n))
        self.rest = torch.zeros(n)

    def exchange(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.params]) + self.rest
        _, idx = flat.abs().topk(self.k)
        val = flat[idx]
        self.rest = flat.clone()
        self.rest[idx] = 0
        all_idx = [torch.empty_like(idx) for _ in range(self.world)]
        all_val = [torch.empty_like(val) for _ in range(self.world)]
        dist.all_gather(all_idx, idx)
        dist.all_gather(all_val, val)
        total = torch.zeros_like(flat)
        for i, v in zip(all_idx, all_val):
            total.index_add_(0, i, v)
        total /= self.world
        at = 0
        for p in self.params:
            p.grad = total[at:at + p.numel()].view_as(p)
            at += p.numel()


def pull_weights(model):
    """Sends all initial weights of rank 0 as one string of bytes."""
    params = list(model.parameters())
    raw = torch.cat([p.detach().reshape(-1).view(torch.uint8) for p in params])
    dist.broadcast(raw, src=0)
    at = 0
    for p in params:
        size = p.numel() * p.element_size()
        p.data.copy_(raw[at:at + size].clone().view(p.dtype).view_as(p))
        at += size


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--share", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=0.1)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))
    pull_weights(model)
    sparse = TopK(model.parameters(), args.share)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(800 + rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(24, 12, generator=gen)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        sparse.exchange()
        opt.step()
        if step % 15 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f} waiting {sparse.rest.norm().item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
