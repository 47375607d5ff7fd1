import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hooks import Meter, Sampler, Snapshot


class Loop:
    def __init__(self, model, data, hooks, batch_size):
        self.model, self.hooks = model, hooks
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=batch_size, sampler=self.sampler)
        self.opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        self.step = 0

    def emit(self, name):
        for h in self.hooks:
            getattr(h, name)(self)

    def run(self, epochs):
        for self.epoch in range(epochs):
            self.sampler.set_epoch(self.epoch)
            for x, y in self.loader:
                self.opt.zero_grad()
                loss = nn.functional.mse_loss(self.model(x), y)
                loss.backward()
                self.opt.step()
                self.step += 1
                self.loss = loss.item()
                self.emit("after_step")
            self.emit("after_epoch")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--export-seconds", type=float, default=10.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.rand(301, 1) * 2 - 1
    net = DDP(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))
    Loop(net, TensorDataset(x, (4 * x).sin()), [Meter(7), Sampler(), Snapshot(3, args.export_seconds)], 16).run(args.epochs)
    dist.destroy_process_group()
