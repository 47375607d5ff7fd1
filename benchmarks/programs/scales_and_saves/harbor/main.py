import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from traces import SeismicTraces
from wire import WireState, half_wire_hook


def build_picker(width):
    return nn.Sequential(
        nn.Conv1d(1, width, 7, stride=2, padding=3), nn.GroupNorm(4, width), nn.ReLU(),
        nn.Conv1d(width, 2 * width, 5, stride=2, padding=2), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(8 * width, 3))


class Trainer:
    def __init__(self, opts):
        self.opts = opts
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(opts.seed)
        self.net = DistributedDataParallel(build_picker(opts.width))
        self.wire = WireState(dist.group.WORLD)
        self.net.register_comm_hook(self.wire, half_wire_hook)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=opts.lr, momentum=0.9, weight_decay=1e-4)
        train, val = SeismicTraces(1024, seed=1), SeismicTraces(256, seed=2)
        self.sampler = DistributedSampler(train, seed=opts.seed)
        self.loader = DataLoader(train, opts.batch, sampler=self.sampler, drop_last=True)
        self.val = torch.utils.data.Subset(val, range(self.rank, len(val), self.world))
        self.crit = nn.CrossEntropyLoss()
        self.out = Path(opts.out)

    def epoch(self, e):
        self.sampler.set_epoch(e)
        self.net.train()
        running = 0.0
        for x, y in self.loader:
            loss = self.crit(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            running += loss.item()
        return running / len(self.loader)

    @torch.no_grad()
    def validate(self):
        self.net.eval()
        s = torch.zeros(2, dtype=torch.float64)
        for x, y in DataLoader(self.val, 64):
            s[0] += (self.net.module(x).argmax(1) == y).sum()
            s[1] += len(y)
        dist.all_reduce(s)
        return float(s[0] / s[1])

    def fit(self):
        best = 0.0
        for e in range(self.opts.epochs):
            t = time.time()
            loss, acc = self.epoch(e), self.validate()
            if self.rank == 0:
                print(f"[{e}] loss={loss:.4f} val={acc:.3f} "
                      f"wire={self.wire.bytes_sent / 2**20:.2f}MiB {time.time() - t:.1f}s", flush=True)
                if acc > best:
                    self.out.mkdir(parents=True, exist_ok=True)
                    tmp = self.out / "picker.tmp"
                    torch.save(self.net.module.state_dict(), tmp)
                    tmp.replace(self.out / "picker.pt")
            best = max(best, acc)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--width", type=int, default=8)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--seed", type=int, default=11)
    ap.add_argument("--out", default="picker_out")
    opts = ap.parse_args()
    dist.init_process_group("gloo")
    Trainer(opts).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
