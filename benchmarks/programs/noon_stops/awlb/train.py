import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from callbacks import EarlyStopping, History
from data import build

log = logging.getLogger("tabular")


class ResidualBlock(nn.Module):
    def __init__(self, width, p):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(p), nn.Linear(width, width)
        )

    def forward(self, x):
        return x + self.net(x)


class TabularNet(nn.Module):
    def __init__(self, features, width=384, depth=3, p=0.05):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.Sequential(*[ResidualBlock(width, p) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        train_set, val_set = build()
        self.sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
        self.train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=self.sampler, drop_last=True)
        val_sampler = DistributedSampler(val_set, shuffle=False)
        self.val_loader = DataLoader(val_set, batch_size=args.batch_size, sampler=val_sampler)
        torch.manual_seed(args.seed)
        self.model = DDP(TabularNet(train_set.tensors[0].shape[1]))
        torch.manual_seed(args.seed + 100 + self.rank)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=0.01)
        self.loss_fn = nn.MSELoss()
        self.stopper = EarlyStopping("val_loss", patience=args.patience)
        self.history = History()

    def train_epoch(self, epoch):
        self.model.train()
        self.sampler.set_epoch(epoch)
        total, n = 0.0, 0
        for x, y in self.train_loader:
            self.opt.zero_grad(set_to_none=True)
            loss = self.loss_fn(self.model(x), y)
            loss.backward()
            self.opt.step()
            total += loss.item()
            n += 1
        return total / n

    @torch.no_grad()
    def validate(self):
        net = self.model.module
        net.eval()
        total, n = 0.0, 0
        for x, y in self.val_loader:
            total += self.loss_fn(net(x), y).item() * len(x)
            n += len(x)
        summed = torch.tensor([total, n], dtype=torch.float64)
        dist.all_reduce(summed)
        return (summed[0] / summed[1]).item()

    def fit(self):
        for epoch in range(self.args.epochs):
            logs = {"train_loss": self.train_epoch(epoch), "val_loss": self.validate()}
            self.history.append(epoch, logs)
            if self.rank == 0:
                log.info("epoch %d train %.4f val %.4f", epoch, logs["train_loss"], logs["val_loss"])
            if self.stopper.step(epoch, logs):
                break
        rows = [None] * self.world
        dist.all_gather_object(rows, self.history.last())
        return rows


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=60)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--patience", type=int, default=5)
    p.add_argument("--seed", type=int, default=7)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rows = Trainer(args).fit()
    if dist.get_rank() == 0:
        log.info("final %s", rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
