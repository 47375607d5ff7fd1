import argparse
import hashlib
import logging
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bucket import ObjectBucket

log = logging.getLogger("lena")


class Forecaster(nn.Module):
    def __init__(self, window, hidden, ahead):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.GELU(), nn.Conv1d(16, 16, 5, padding=2), nn.GELU())
        self.fc = nn.Sequential(nn.Linear(16 * window, hidden), nn.GELU(), nn.Linear(hidden, ahead))

    def forward(self, x):
        return self.fc(self.conv(x[:, None]).flatten(1))


def series(n, window, ahead, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(window + ahead).float()
    a, b = torch.rand(n, 1, generator=g) * 0.4 + 0.1, torch.rand(n, 1, generator=g) * 6.28
    full = torch.sin(a * t + b) + 0.1 * torch.randn(n, window + ahead, generator=g)
    return TensorDataset(full[:, :window], full[:, window:])


class Run:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        full = series(args.series, args.window, args.ahead, args.seed)
        n = args.series * 4 // 5
        self.train_set = torch.utils.data.Subset(full, range(n))
        self.val_set = torch.utils.data.Subset(full, range(n, args.series))
        self.sampler = DistributedSampler(self.train_set, shuffle=True, seed=args.seed, drop_last=True)
        self.loader = DataLoader(self.train_set, args.batch, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(
            self.val_set, args.batch, sampler=list(range(len(self.val_set)))[self.rank::self.world]
        )
        self.model = DDP(Forecaster(args.window, args.hidden, args.ahead))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.epochs * len(self.loader))
        self.bucket = ObjectBucket(args.bandwidth) if self.rank == 0 else None

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in self.loader:
            loss = nn.functional.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = torch.zeros(2)
        for x, y in self.val_loader:
            total += torch.tensor([((self.model.module(x) - y) ** 2).sum().item(), float(y.numel())])
        self.model.train()
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def publish(self, epoch):
        if self.rank == 0:
            folder = tempfile.mkdtemp(prefix="lena_")
            path = os.path.join(folder, f"epoch{epoch}.pt")
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict()}, path)
            took = self.bucket.upload(path)
            log.info("uploaded %s in %.1fs", os.path.basename(path), took)
            shutil.rmtree(folder)
        dist.barrier()

    def fit(self):
        for epoch in range(self.args.epochs):
            loss = self.train_epoch(epoch)
            val = self.validate()
            if self.rank == 0:
                log.info("epoch %d train %.4f val %.4f", epoch, loss, val)
            if epoch == self.args.publish_epoch:
                self.publish(epoch)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--series", type=int, default=1000)
    ap.add_argument("--window", type=int, default=32)
    ap.add_argument("--ahead", type=int, default=8)
    ap.add_argument("--hidden", type=int, default=64)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--publish-epoch", type=int, default=1)
    ap.add_argument("--bandwidth", type=float, default=22.0, help="KiB per second towards the bucket")
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {dist.get_rank()} %(message)s")
    run = Run(args)
    run.fit()
    digest = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in run.model.parameters())).hexdigest()[:12]
    log.info("weights %s", digest)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
