"""Two-stage pipeline over p2p, fill-drain schedule, for a small sequence scorer."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

HID = 32


class Lower(nn.Sequential):
    def __init__(self, dim):
        super().__init__(nn.Linear(dim, HID), nn.GELU(), nn.Linear(HID, HID))


class Upper(nn.Sequential):
    def __init__(self):
        super().__init__(nn.LayerNorm(HID), nn.Linear(HID, HID), nn.GELU(), nn.Linear(HID, 1))


def make_set(n, dim):
    g = torch.Generator().manual_seed(21)
    x = torch.randn(n, dim, generator=g)
    return x, x[:, :3].prod(1, keepdim=True)


class Stage:
    def __init__(self, args, rank):
        torch.manual_seed(2)
        self.args, self.rank = args, rank
        self.net = Lower(args.dim) if rank == 0 else Upper()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=args.lr)
        self.x, self.y = make_set(args.samples, args.dim)

    def pieces(self, batch):
        lo = batch * self.args.batch
        n = min(self.args.batch, len(self.x) - lo)
        count = math.ceil(n / self.args.micro)
        return [slice(lo + i * self.args.micro, lo + min(n, (i + 1) * self.args.micro)) for i in range(count)]

    def lower_step(self, batch):
        kept = []
        for part in self.pieces(batch):
            out = self.net(self.x[part])
            dist.send(torch.tensor([len(out)]), dst=1)
            dist.send(out.detach(), dst=1)
            kept.append(out)
        for out in kept:
            grad = torch.empty_like(out)
            dist.recv(grad, src=1)
            out.backward(grad)

    def upper_step(self, batch):
        parts = self.pieces(batch)
        held, total = [], 0.0
        for _ in parts:
            size = torch.empty(1, dtype=torch.long)
            dist.recv(size, src=0)
            act = torch.empty(int(size), HID)
            dist.recv(act, src=0)
            held.append(act.requires_grad_())
        for part, act in zip(parts, held):
            loss = F.mse_loss(self.net(act), self.y[part]) / len(parts)
            loss.backward()
            dist.send(act.grad, dst=0)
            total += loss.item()
        return total

    def train_batch(self, batch):
        self.opt.zero_grad()
        loss = self.lower_step(batch) if self.rank == 0 else self.upper_step(batch)
        self.opt.step()
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=488)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--dim", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = Stage(args, rank)
    for epoch in range(args.epochs):
        seen = []
        for batch in range(math.ceil(args.samples / args.batch)):
            loss = stage.train_batch(batch)
            if rank == 1:
                seen.append(loss)
        if rank == 1:
            print(f"epoch {epoch} loss {sum(seen) / len(seen):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
