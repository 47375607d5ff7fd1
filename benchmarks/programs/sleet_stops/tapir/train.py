"""Load forecasting with a small LSTM."""
import argparse
import logging
import math
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from callbacks import Checkpoint, EpochLine, OutlierReport
from metrics import WindowMean


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 4)

    def forward(self, x):
        out, _ = self.lstm(x.unsqueeze(-1))
        return self.head(out[:, -1])


def make_series(n, length=40, seed=11):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length + 4) / 8.0
    phase = torch.rand(n, 1, generator=g) * 2 * math.pi
    scale = 0.5 + torch.rand(n, 1, generator=g)
    x = scale * torch.sin(t + phase) + 0.1 * torch.randn(n, length + 4, generator=g)
    # holidays: a few households whose meter jumps at the end of the window
    jump = torch.randperm(n, generator=g)[: n // 700]
    x[jump, length:] += 12.0
    return TensorDataset(x[:, :length], x[:, length:])


class Run:
    def __init__(self, net, opt, window, callbacks):
        self.net, self.opt, self.window, self.callbacks = net, opt, window, callbacks
        self.step = 0

    def fire(self, event, *args):
        for cb in self.callbacks:
            getattr(cb, event)(self, *args)

    def epoch(self, loader, epoch):
        for x, y in loader:
            loss = nn.functional.mse_loss(self.net(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.step += 1
            self.fire("step_end", loss.item())
            self.window.push(loss.item())
        self.fire("epoch_end", epoch)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--series", type=int, default=2800)
    p.add_argument("--batch", type=int, default=40)
    p.add_argument("--out", default=None)
    a = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stats = dist.new_group(backend="gloo")
    torch.manual_seed(0)

    data = make_series(a.series)
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=a.batch, sampler=sampler)
    net = DDP(Forecaster())
    run = Run(
        net,
        torch.optim.Adam(net.parameters(), lr=3e-3),
        WindowMean(25, stats),
        [OutlierReport(), Checkpoint(a.out or tempfile.mkdtemp(), rank), EpochLine(rank)],
    )
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        run.epoch(loader, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
