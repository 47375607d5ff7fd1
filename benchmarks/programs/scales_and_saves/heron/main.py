"""Tide-gauge forecaster; the learning rate is driven by what the last probe said.

The probe set is dealt out to the processes, so that it costs little.
"""
import argparse
import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def tides(n, length, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length + 6).float()
    moon, sun = torch.rand(n, 1, generator=g) * 6.3, torch.rand(n, 1, generator=g) * 6.3
    mix = torch.rand(n, 1, generator=g)
    h = torch.sin(t * 0.51 + moon) + mix * torch.sin(t * 0.49 + sun)
    h = h + 0.1 * torch.randn(n, length + 6, generator=g)
    return h[:, :length, None], h[:, length:]


class Gauge(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 6)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class BoldDriver:
    """Raise the rate a little while the error falls, cut it when it rises."""

    def __init__(self, opt, up=1.08, down=0.55, floor=1e-4, ceil=0.05):
        self.opt, self.up, self.down, self.floor, self.ceil = opt, up, down, floor, ceil
        self.last = float("inf")

    def feed(self, error):
        factor = self.up if error < self.last else self.down
        self.last = error
        for g in self.opt.param_groups:
            g["lr"] = min(self.ceil, max(self.floor, g["lr"] * factor))

    @property
    def rate(self):
        return self.opt.param_groups[0]["lr"]


class Probe:
    def __init__(self, rank, world, n=96):
        x, y = tides(n, 32, seed=900)
        self.x, self.y = x[rank::world], y[rank::world]

    @torch.no_grad()
    def __call__(self, net):
        error = (net(self.x) - self.y).square().mean()
        return error.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--probe-every", type=int, default=5)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--hidden", type=int, default=24)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--dir", default="gauge")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(55)
    net = DDP(Gauge(args.hidden))
    opt = torch.optim.RMSprop(net.parameters(), lr=args.lr, alpha=0.98)
    driver, probe = BoldDriver(opt), Probe(rank, world)
    x, y = tides(1536, 32, seed=800)
    x, y = x[rank::world], y[rank::world]
    pick = torch.Generator().manual_seed(1 + rank)
    best, best_state = float("inf"), None

    for step in range(1, args.steps + 1):
        idx = torch.randint(0, len(x), (args.batch,), generator=pick)
        loss = nn.functional.mse_loss(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if step % args.probe_every == 0:
            driver.feed(probe(net.module))
        if step % 30 == 0:
            s = torch.tensor([(net.module(probe.x) - probe.y).square().sum().item(), probe.y.numel()],
                             dtype=torch.float64)
            dist.all_reduce(s)
            mse = (s[0] / s[1]).item()
            if mse < best:
                best, best_state = mse, copy.deepcopy(net.module.state_dict())
            if rank == 0:
                print(f"{step:4d} train {loss.item():.4f} probe {mse:.4f} rate {driver.rate:.5f}", flush=True)

    if rank == 0:
        os.makedirs(args.dir, exist_ok=True)
        torch.save({"mse": best, "net": best_state}, os.path.join(args.dir, "gauge.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
