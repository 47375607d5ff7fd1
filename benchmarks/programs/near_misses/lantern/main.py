"""Switch transformer style regressor: experts are spread over the processes."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from sparse import Switch, split_parameters


class Lantern(nn.Module):
    def __init__(self, features=6, dim=32, hidden=64, classes=5):
        super().__init__()
        self.inp = nn.Linear(features, dim)
        self.switch = Switch(dim, hidden)
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        h, balance = self.switch(torch.tanh(self.inp(x)))
        return self.out(h), balance


def synth(count, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=gen)
    regime = (x[:, 0] > 0).long()
    angle = torch.atan2(x[:, 1] + 0.5 * regime * x[:, 2], x[:, 3] - 0.5 * (1 - regime) * x[:, 4])
    y = ((angle + torch.pi) / (2 * torch.pi) * 5).long().clamp(0, 4)
    return x, torch.where(regime == 1, y, 4 - y)


def build(args, rank):
    """Same dense weights everywhere, an own expert in every process."""
    torch.manual_seed(args.seed)
    model = Lantern()
    dense, expert = split_parameters(model)
    gen = torch.Generator().manual_seed(args.seed * 10 + rank)
    with torch.no_grad():
        for p in expert:
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape, generator=gen) * p.size(1) ** -0.5)
            else:
                p.zero_()
    for p in dense:
        dist.broadcast(p.data, src=0)
    return model, dense, expert


def reduce_gradients(dense, expert, world):
    flat = torch.cat([p.grad.flatten() for p in dense])
    dist.all_reduce(flat)
    flat /= world
    for p, piece in zip(dense, flat.split([p.numel() for p in dense])):
        p.grad.copy_(piece.view_as(p))
    for p in expert:
        p.grad.div_(world)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--balance", type=float, default=0.02)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=13)
    ap.add_argument("--out", default=tempfile.gettempdir())
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    data = TensorDataset(*synth(2560, args.seed))
    sampler = DistributedSampler(data, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    vx, vy = synth(512, args.seed + 1)
    vx, vy = vx[rank::world], vy[rank::world]

    model, dense, expert = build(args, rank)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            logits, balance = model(x)
            loss = F.cross_entropy(logits, y) + args.balance * balance
            opt.zero_grad(set_to_none=True)
            loss.backward()
            reduce_gradients(dense, expert, world)
            opt.step()
        with torch.no_grad():
            hits = (model(vx)[0].argmax(-1) == vy).sum().double()
        stat = torch.stack([hits, torch.tensor(float(len(vy)), dtype=torch.float64), loss.detach().double() / world])
        dist.all_reduce(stat)
        if rank == 0:
            print(f"epoch {epoch} loss {stat[2].item():.4f} acc {(stat[0] / stat[1]).item():.3f}", flush=True)

    torch.save(model.switch.block.state_dict(), os.path.join(args.out, f"lantern_expert{rank}.pt"))
    if rank == 0:
        rest = {k: v for k, v in model.state_dict().items() if not k.startswith("switch.block.")}
        torch.save(rest, os.path.join(args.out, "lantern_dense.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
