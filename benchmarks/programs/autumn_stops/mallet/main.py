import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn

from ring import HaloExchange

log = logging.getLogger("slabs")


class SlabConv(nn.Module):
    """Convolution over a domain that is cut into one slab per rank."""

    def __init__(self, cin, cout, width=2):
        super().__init__()
        self.width = width
        self.conv = nn.Conv1d(cin, cout, 2 * width + 1)

    def forward(self, x):
        left, right = HaloExchange.apply(x, self.width)
        return self.conv(torch.cat([left, x, right], dim=-1))


class Surrogate(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.layers = nn.ModuleList([SlabConv(1, channels), SlabConv(channels, channels), SlabConv(channels, 1)])

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i + 1 < len(self.layers):
                x = torch.tanh(x)
        return x


def diffusion_pairs(step, rank, n, size=16, cells=192):
    """Initial field and the field some time later, cut down to the slab of this rank."""
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(size, 1, cells, generator=gen)
    for _ in range(3):
        x = nn.functional.avg_pool1d(x, 5, 1, 2)
    y = x
    for _ in range(4):
        p = nn.functional.pad(y, (1, 1))
        y = y + 0.2 * (p[..., 2:] - 2 * y + p[..., :-2])
    slab = cells // n
    cut = slice(rank * slab, (rank + 1) * slab)
    return x[..., cut].contiguous(), y[..., cut].contiguous()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--probe-every", type=int, default=40)
    p.add_argument("--probe-seconds", type=float, default=5.0)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(name)s %(message)s")
    torch.manual_seed(0)
    model = Surrogate()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)

    for step in range(1, args.steps + 1):
        x, y = diffusion_pairs(step, rank, n)
        x.requires_grad_()
        loss = nn.functional.mse_loss(model(x), y) * 100
        opt.zero_grad()
        loss.backward()
        for q in model.parameters():
            dist.all_reduce(q.grad)
            q.grad /= n
        opt.step()
        if step % args.probe_every == 0:
            if rank == 1:
                # the probe is attached to the host of the middle slab
                time.sleep(args.probe_seconds)
            total = loss.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                log.info("step %d loss %.5f", step, total.item() / n)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
