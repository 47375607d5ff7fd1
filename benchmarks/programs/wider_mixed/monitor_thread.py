"""Training with a side thread that compares the ranks' progress over a group of its own, and a bounded feature cache."""
import collections
import datetime
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class ProgressMonitor(threading.Thread):
    def __init__(self, interval=0.4, rounds_max=200):
        super().__init__(daemon=True)
        self.group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=60))
        self.interval, self.rounds_max = interval, rounds_max
        self.step, self.stop, self.lags = 0, False, []

    def run(self):
        for _ in range(self.rounds_max):
            t = torch.tensor([self.step, self.step, int(self.stop)])
            t[1] = -t[1]
            dist.all_reduce(t, op=dist.ReduceOp.MIN, group=self.group)
            self.lags.append(int(-t[1] - t[0]))
            if t[2]:
                break
            time.sleep(self.interval)


class SpectrumDataset(Dataset):
    CAP = 96

    def __init__(self, n=320):
        self.n = n
        self.cache = collections.OrderedDict()

    def __len__(self):
        return self.n

    def _decode(self, i):
        g = torch.Generator().manual_seed(i)
        wave = torch.randn(16384, generator=g) + torch.sin(torch.arange(16384) * (1 + i % 4) / 9)
        return torch.stft(wave, 256, return_complex=True, window=torch.hann_window(256)).abs()

    def __getitem__(self, i):
        if i in self.cache:
            self.cache.move_to_end(i)
        else:
            self.cache[i] = self._decode(i)
            if len(self.cache) > self.CAP:
                self.cache.popitem(last=False)
        return self.cache[i].mean(1), i % 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    monitor = ProgressMonitor()
    net = DDP(nn.Sequential(nn.LayerNorm(129), nn.Linear(129, 64), nn.ReLU(), nn.Linear(64, 4)))
    ds = SpectrumDataset()
    sampler = DistributedSampler(ds, seed=2)
    loader = DataLoader(ds, batch_size=8, sampler=sampler)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    monitor.start()
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            monitor.step += 1
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} cached {len(ds.cache)}", flush=True)
    monitor.stop = True
    monitor.join()
    if rank == 0:
        print("largest lag seen", max(monitor.lags), "in", len(monitor.lags), "rounds")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
