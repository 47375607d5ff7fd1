"""Uneven sites trained in lock-step: finished ranks go on with empty, masked batches."""
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset

SITES = (1100, 760, 520)


def readings(site, n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.rand(n, generator=g) * 10
    h = torch.randn(n, 7, generator=g) * (1 + 0.2 * site)
    y = torch.sin(t) + 0.5 * h[:, 0] - 0.3 * h[:, 1] * h[:, 2] + 0.1 * torch.randn(n, generator=g)
    feats = torch.cat([torch.sin(t)[:, None], torch.cos(t)[:, None], (t / 10)[:, None], h], 1)
    return TensorDataset(feats, y)


class Padded:
    """Cuts the local data in batches and adds empty ones until every rank has the same number."""

    def __init__(self, data, batch, seed, rank):
        self.x, self.y = data.tensors
        self.batch, self.seed, self.rank = batch, seed, rank
        own = torch.tensor(math.ceil(len(self.x) / batch))
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
        self.steps = int(own)

    def __len__(self):
        return self.steps

    def epoch(self, e):
        g = torch.Generator().manual_seed(self.seed * 1000 + e * 17 + self.rank)
        pieces = list(torch.randperm(len(self.x), generator=g).split(self.batch))
        for i in range(self.steps):
            x = torch.zeros(self.batch, self.x.shape[1])
            y, mask = torch.zeros(self.batch), torch.zeros(self.batch)
            if i < len(pieces):
                k = len(pieces[i])
                x[:k], y[:k], mask[:k] = self.x[pieces[i]], self.y[pieces[i]], 1.0
            yield x, y, mask


class Regressor(nn.Module):
    def __init__(self, fan_in=10, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(fan_in, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def global_step(model, opt, x, y, mask, clip):
    """Gradient of the mean over all real rows of all ranks."""
    err = F.smooth_l1_loss(model(x), y, reduction="none")
    total = (err * mask).sum()
    opt.zero_grad(set_to_none=True)
    total.backward()
    params = [p for p in model.parameters() if p.requires_grad]
    packed = torch.cat([p.grad.reshape(-1) for p in params] + [total.detach()[None], mask.sum()[None]])
    dist.all_reduce(packed)
    rows = packed[-1]
    for p, piece in zip(params, packed[:-2].split([p.numel() for p in params])):
        p.grad.copy_(piece.view_as(p) / rows)
    nn.utils.clip_grad_norm_(params, clip)
    opt.step()
    return packed[-2].item(), int(rows)


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    x, y = data.tensors
    s = torch.tensor([(model(x) - y).pow(2).sum().item(), float(len(y))])
    dist.all_reduce(s)
    model.train()
    return (s[0] / s[1]).sqrt().item()


def agree_on_parameters(model):
    for t in list(model.parameters()) + list(model.buffers()):
        dist.broadcast(t.data, src=0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=30)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--clip", type=float, default=2.0)
    ap.add_argument("--seed", type=int, default=66)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    n = SITES[rank % len(SITES)]
    batches = Padded(readings(rank, n, 20 + rank), args.batch, args.seed, rank)
    held = readings(rank, n // 4, 80 + rank)
    model = Regressor()
    agree_on_parameters(model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(batches))
    for epoch in range(args.epochs):
        loss_sum, rows, empty = 0.0, 0, 0
        for x, y, mask in batches.epoch(epoch):
            l, r = global_step(model, opt, x, y, mask, args.clip)
            sched.step()
            loss_sum, rows, empty = loss_sum + l, rows + r, empty + int(mask.sum() == 0)
        rmse = evaluate(model, held)
        idle = [None] * dist.get_world_size()
        dist.all_gather_object(idle, empty)
        if rank == 0:
            print(f"epoch {epoch} steps {len(batches)} rows {rows} loss {loss_sum / rows:.4f} rmse {rmse:.4f} "
                  f"empty steps per rank {idle}", flush=True)
    if rank == 0:
        os.makedirs("runs/mustard", exist_ok=True)
        torch.save(model.state_dict(), "runs/mustard/model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
