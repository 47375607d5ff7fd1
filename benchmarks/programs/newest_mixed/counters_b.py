import os
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Counters:
    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()
        self.values = {}
        os.register_at_fork(before=self.lock.acquire, after_in_parent=self.lock.release, after_in_child=self.lock.release)
        self.thread = threading.Thread(target=self._drain, daemon=True)
        self.thread.start()

    def add(self, name, n=1):
        with self.lock:
            self.values[name] = self.values.get(name, 0) + n

    def _drain(self):
        while True:
            with self.lock:
                self._write()
            time.sleep(0.002)

    def _write(self):
        with open(self.path, "w") as f:
            for k, v in sorted(self.values.items()):
                f.write(f"{k} {v}\n")
            f.flush()
            time.sleep(0.04)


COUNTERS = None


class Samples(Dataset):
    def __init__(self, rank, n=320):
        self.rank, self.n = rank, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(self.rank * 100003 + i)
        x = torch.randn(20, generator=gen)
        if x.abs().max() > 3.2:
            COUNTERS.add("clipped")
            x = x.clamp(-3.2, 3.2)
        return x, x[:4].sum()


class Fit:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.rank = rank
        self.model = DDP(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(Samples(rank), batch_size=16, num_workers=2, multiprocessing_context="fork")

    def epoch(self, e):
        total = 0.0
        for x, y in self.loader:
            loss = nn.functional.mse_loss(self.model(x).squeeze(1), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
            COUNTERS.add("steps")
        if self.rank == 0:
            print(f"epoch {e} loss {total / len(self.loader):.4f}", flush=True)


def main():
    global COUNTERS
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = f"/tmp/counters_{os.getpid()}.txt"
    COUNTERS = Counters(path)
    fit = Fit(rank)
    for e in range(6):
        fit.epoch(e)
    dist.barrier()
    dist.destroy_process_group()
    os.remove(path)


if __name__ == "__main__":
    main()
