"""Federated-style training: one site per rank, shared weights, site-specific batch statistics."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import load_best, save_best


def site_data(site, n, seed):
    g = torch.Generator().manual_seed(seed * 100 + site)
    z = torch.randn(n, 8, generator=g)
    y = (z[:, 0] + z[:, 1] > 0).long()
    gain, offset = [(1.0, 0.0), (4.0, 9.0), (0.3, -6.0)][site]
    return z * gain + offset, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_in = nn.BatchNorm1d(8)
        self.body = nn.Sequential(nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        return self.body(self.norm_in(x))


@torch.no_grad()
def site_accuracy(net, x, y):
    net.eval()
    acc = (net(x).argmax(1) == y).float().mean()
    net.train()
    return acc


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--out", default="runs/sites")
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = Net()
    ddp = DDP(net, broadcast_buffers=False)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    x, y = site_data(rank, 512, 0)
    vx, vy = site_data(rank, 256, 1)
    tx, ty = site_data(rank, 256, 2)
    gen = torch.Generator().manual_seed(rank)
    best = -1.0
    for step in range(1, a.steps + 1):
        idx = torch.randint(0, len(x), (32,), generator=gen)
        opt.zero_grad()
        nn.functional.cross_entropy(ddp(x[idx]), y[idx]).backward()
        opt.step()
        if step % 20 == 0:
            mean = site_accuracy(net, vx, vy)
            dist.all_reduce(mean)
            mean = mean.item() / world
            if mean > best:
                best = mean
                save_best(net, step, a.out)
    at = load_best(net, a.out)
    print(f"site {rank}: best val (all sites) {best:.3f} at step {at}, test {site_accuracy(net, tx, ty):.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
