import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class IndexedCorpus(Dataset):
    def __init__(self, rank, shards=4):
        self.items = []
        for s in range(shards):
            self._open_shard(rank, s)

    def _open_shard(self, rank, s):
        time.sleep(0.05 + 0.15 * rank)
        gen = torch.Generator().manual_seed(1000 * rank + s)
        self.items += list(torch.randn(256, 24, generator=gen))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        x = self.items[i]
        return x, x.roll(1)


class Budget:
    def __init__(self, seconds):
        self.seconds = seconds
        self.started = None

    def start(self):
        self.started = time.monotonic()

    def spent(self):
        over = torch.tensor(float(time.monotonic() - self.started > self.seconds))
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        return over.item() > 0


class Trainer:
    def __init__(self, args):
        self.rank = dist.get_rank()
        self.budget = Budget(args.max_time)
        torch.manual_seed(0)
        self.model = DDP(nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 24)))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(IndexedCorpus(self.rank), batch_size=8, shuffle=True)
        self.budget.start()
        self.step = 0

    def train_step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        time.sleep(0.02)
        return loss.item()

    def run_epoch(self):
        for x, y in self.loader:
            loss = self.train_step(x, y)
            self.step += 1
            if self.rank == 0 and self.step % 20 == 0:
                print(f"{self.step}: {loss:.4f}", flush=True)
            if self.budget.spent():
                return False
        return True

    def finish(self):
        norms = torch.tensor([p.norm().item() for p in self.model.parameters()])
        dist.all_reduce(norms, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
        if self.rank == 0:
            print("finished at", self.step, "norms", (norms / dist.get_world_size()).tolist(), flush=True)

    def fit(self):
        while self.run_epoch():
            pass
        self.finish()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-time", type=float, default=4.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    Trainer(args).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
