import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from moe import SwitchLayer


class Net(nn.Module):
    def __init__(self, d_in, dim, hidden, classes):
        super().__init__()
        self.inp = nn.Linear(d_in, dim)
        self.norm = nn.LayerNorm(dim)
        self.moe = SwitchLayer(dim, hidden)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.moe(self.norm(self.inp(x))))


def batch(step, rank, n, teacher):
    g = torch.Generator().manual_seed(step * 1009 + rank)
    x = torch.randn(n, teacher.shape[1], generator=g)
    mode = (x[:, 0] > 0).long()
    y = torch.einsum("nd,ndc->nc", x, teacher[mode]).argmax(-1)
    return x, y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=260)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--lr", type=float, default=0.1)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    net = Net(24, args.dim, args.hidden, 8)
    teacher = torch.randn(2, 24, 8)
    own = {id(p) for p in net.moe.local_parameters()}
    shared = [p for p in net.parameters() if id(p) not in own]
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)

    for step in range(args.steps):
        x, y = batch(step, rank, args.batch, teacher)
        logits = net(x)
        loss = F.cross_entropy(logits, y) + 0.01 * net.moe.balance
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in shared])
        dist.all_reduce(flat)
        flat /= world
        for p, g in zip(shared, flat.split([p.numel() for p in shared])):
            p.grad.copy_(g.view_as(p))
        opt.step()
        if step % 40 == 39:
            acc = (logits.argmax(-1) == y).float().mean()
            dist.all_reduce(acc)
            if rank == 0:
                print(f"step {step + 1} loss {loss.item():.3f} acc {acc.item() / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
