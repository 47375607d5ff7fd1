import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import BestKeeper
from data import loaders


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.model = DDP(net)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.train_loader, self.val_loader, self.sampler = loaders(self.rank, self.world, args.batch_size)
        self.keeper = BestKeeper(net)
        self.loss_fn = nn.MSELoss()

    def train_epoch(self, epoch):
        self.model.train()
        self.sampler.set_epoch(epoch)
        for x, y in self.train_loader:
            self.opt.zero_grad(set_to_none=True)
            self.loss_fn(self.model(x), y).backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses = [self.loss_fn(self.model.module(x), y) for x, y in self.val_loader]
        return torch.stack(losses).mean().item()

    def fit(self):
        for epoch in range(self.args.epochs):
            self.train_epoch(epoch)
            val_loss = self.validate()
            improved = self.keeper.update(epoch, val_loss)
            if self.rank == 0:
                logging.info("epoch %d val %.4f%s", epoch, val_loss, " *" if improved else "")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=15)
    ap.add_argument("--batch-size", type=int, default=20)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    Trainer(args).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
