"""Per-site training: each rank holds the records of its own sites, and sites differ in size."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class SiteData:
    def __init__(self, rank, sizes=(2600, 900, 1500), width=80):
        g = torch.Generator().manual_seed(rank)
        w = torch.randn(width, generator=torch.Generator().manual_seed(5))
        self.x = torch.randn(sizes[rank % len(sizes)], width, generator=g) + 0.2 * rank
        self.y = (torch.sigmoid(self.x @ w) > torch.rand(len(self.x), generator=g)).float()

    def epoch(self, number, batch):
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(number))
        for i in range(0, len(order), batch):
            idx = order[i:i + batch]
            yield self.x[idx], self.y[idx]


class SumReducer:
    """Gradient of the sum over all ranks divided by the number of rows over all ranks."""

    def __init__(self, model):
        self.params = list(model.parameters())
        self.size = sum(p.numel() for p in self.params)

    def __call__(self, rows, loss_sum):
        flat = torch.zeros(self.size + 3)
        at = 0
        for p in self.params:
            if p.grad is not None:
                flat[at:at + p.numel()] = p.grad.flatten()
            at += p.numel()
        flat[-3], flat[-2], flat[-1] = rows, loss_sum, float(rows > 0)
        dist.all_reduce(flat)
        total = flat[-3].item()
        if total > 0:
            at = 0
            for p in self.params:
                p.grad = (flat[at:at + p.numel()] / total).view_as(p)
                at += p.numel()
        return total, flat[-2].item(), int(flat[-1].item())


def build():
    return nn.Sequential(nn.Linear(80, 512), nn.ReLU(), nn.LayerNorm(512), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = build()
    for t in model.parameters():
        dist.broadcast(t.data, src=0)
    data, reduce = SiteData(rank), SumReducer(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        batches = data.epoch(epoch, args.batch)
        seen = loss_total = 0.0
        idle_steps = 0
        while True:
            optimizer.zero_grad(set_to_none=True)
            batch = next(batches, None)
            rows, loss_sum = 0, 0.0
            if batch is not None:
                x, y = batch
                loss = F.binary_cross_entropy_with_logits(model(x).squeeze(-1), y, reduction="sum")
                loss.backward()
                rows, loss_sum = len(x), loss.item()
            total, loss_all, active = reduce(rows, loss_sum)
            if total == 0:
                break
            optimizer.step()
            seen, loss_total = seen + total, loss_total + loss_all
            idle_steps += active < dist.get_world_size()
        if rank == 0:
            print(f"epoch {epoch} rows {seen:.0f} loss {loss_total / seen:.4f} steps with idle sites {idle_steps}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
