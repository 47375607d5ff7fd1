"""Three-stage pipeline training; only the ends of the pipe read data.

    torchrun --nproc-per-node 3 rudd/main.py
"""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from data import Progressions, build_loader
from engine import OneFOneB
from stages import Stage, StageConfig

log = logging.getLogger("pipe")


@dataclass
class Config:
    docs: int = 76
    batch: int = 16
    micro_batch: int = 4
    epochs: int = 3
    lr: float = 3e-3
    min_lr_frac: float = 0.1
    weight_decay: float = 0.01
    seed: int = 19


def loss_fn(logits, target):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


class PipelineRun:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.scfg = StageConfig(layers=2 * self.world)
        self.stage = Stage(self.scfg, self.rank, self.world, cfg.seed)
        self.engine = OneFOneB(self.stage, cfg.micro_batch, (self.scfg.seq, self.scfg.dim), loss_fn)
        self.steps_per_epoch = math.ceil(cfg.docs / cfg.batch)
        total = self.steps_per_epoch * cfg.epochs
        self.opt = torch.optim.AdamW(self.stage.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: cfg.min_lr_frac + (1 - cfg.min_lr_frac) * (1 - s / total))
        self.reads_data = self.engine.first or self.engine.last
        if self.reads_data:
            self.ds = Progressions(cfg.docs, self.scfg.seq, self.scfg.vocab, cfg.seed)

    def batches(self, epoch: int):
        if not self.reads_data:
            for _ in range(self.steps_per_epoch):
                yield None, None
            return
        for x, y in build_loader(self.ds, self.cfg.batch, self.cfg.seed * 100 + epoch):
            yield (x if self.engine.first else None), (y if self.engine.last else None)

    def train_epoch(self, epoch: int) -> float:
        total, n = 0.0, 0
        for x, y in self.batches(epoch):
            loss = self.engine.run(x, y)
            if self.engine.first or self.engine.last:
                self._sync_table()
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
            self.sched.step()
            total, n = total + loss, n + 1
            if self.engine.last:
                log.info("epoch %d step %d loss %.4f", epoch, n, loss)
        return total / n

    def _sync_table(self):
        """The token table is tied between both ends of the pipe."""
        grad = self.stage.table.weight.grad
        peer = self.world - 1 if self.engine.first else 0
        other = torch.empty_like(grad)
        if self.engine.first:
            dist.send(grad, dst=peer)
            dist.recv(other, src=peer)
        else:
            dist.recv(other, src=peer)
            dist.send(grad, dst=peer)
        grad += other


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=Config.docs)
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ap.add_argument("--lr", type=float, default=Config.lr)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run = PipelineRun(Config(docs=a.docs, epochs=a.epochs, lr=a.lr))
    for epoch in range(run.cfg.epochs):
        mean = torch.tensor(run.train_epoch(epoch))
        dist.broadcast(mean, src=run.world - 1)
        if run.rank == 0:
            log.info("epoch %d mean loss %.4f", epoch, mean)
    torch.save(run.stage.state_dict(), f"rudd_stage{run.rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
