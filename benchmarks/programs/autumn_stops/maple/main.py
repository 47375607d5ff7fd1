import argparse
import logging
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from data import Splits
from sharded_adam import ShardedAdam

log = logging.getLogger("surrogate")


def build_model(dim, width, depth):
    layers, d = [], dim
    for _ in range(depth):
        layers += [nn.Linear(d, width), nn.GELU()]
        d = width
    return nn.Sequential(*layers, nn.Linear(d, 1))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.splits = Splits(self.rank, self.world_size)
        torch.manual_seed(args.seed)
        self.model = build_model(48, args.width, args.depth)
        self.opt = ShardedAdam(self.model.parameters(), lr=args.lr, weight_decay=0.01)
        self.best = float("inf")
        self.out = self._output_dir()

    def _output_dir(self):
        box = [self.args.out]
        if self.rank == 0 and box[0] is None:
            box[0] = tempfile.mkdtemp(prefix="maple-")
        dist.broadcast_object_list(box, src=0)
        return Path(box[0])

    def train_epoch(self, epoch):
        self.model.train()
        running, steps = 0.0, 0
        for x, y in self.splits.batches(epoch, self.args.batch_size):
            self.opt.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            self.opt.step()
            running += loss.item()
            steps += 1
        return running / max(steps, 1)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = self.splits.val
        err = nn.functional.mse_loss(self.model(x), y, reduction="sum")
        stats = torch.tensor([err.item(), float(len(x))])
        dist.reduce(stats, dst=0, op=dist.ReduceOp.SUM)
        return (stats[0] / stats[1]).item()

    def save(self, epoch, val):
        optim_state = self.opt.consolidated_state_dict()
        if self.rank == 0:
            torch.save(
                {"epoch": epoch, "val": val, "model": self.model.state_dict(), "optim": optim_state},
                self.out / "best.pt",
            )
            log.info("epoch %d: new best %.5f", epoch, val)

    def fit(self):
        for epoch in range(self.args.epochs):
            train_loss = self.train_epoch(epoch)
            val = self.validate()
            if self.rank == 0:
                log.info("epoch %d train %.5f val %.5f", epoch, train_loss, val)
            if val < self.best:
                self.best = val
                self.save(epoch, val)
        dist.barrier()


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=16)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--width", type=int, default=192)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--out", default=None)
    return p.parse_args()


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    args = parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    trainer.fit()
    if trainer.rank == 0:
        log.info("finished, best %.5f, artefacts in %s", trainer.best, trainer.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
