"""Small regression trainer with rewinding to the best weights.

The first process scores the held-out set after every epoch and posts its verdict
on the rendezvous store; everybody acts on it (keep going, or reload the best
weights with a smaller learning rate).
"""
import argparse
import json
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("loop")


@dataclass
class Config:
    epochs: int = 8
    batch_size: int = 32
    lr: float = 0.05
    momentum: float = 0.9
    min_delta: float = 0.02
    patience: int = 2
    rewind_factor: float = 0.3
    hidden: int = 64
    seed: int = 5


class NoticeBoard:
    """Tiny key/value view on the store which the job was started with."""

    def __init__(self, prefix):
        base = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore(prefix, base)

    def post(self, key, **fields):
        self.store.set(key, json.dumps(fields))

    def read(self, key):
        return json.loads(self.store.get(key))


class Judge:
    def __init__(self, cfg, board, folder):
        self.cfg, self.board, self.folder = cfg, board, folder
        self.best = float("inf")
        self.stale = 0

    def decide(self, epoch, score, model, opt):
        if score < self.best - self.cfg.min_delta:
            self.best, self.stale = score, 0
            path = self.folder / f"best-{epoch}.pt"
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, path)
            self.board.post(f"verdict/{epoch}", action="better", path=str(path))
            self.best_path = path
            return {"action": "better", "path": str(path)}
        self.stale += 1
        if self.stale < self.cfg.patience:
            self.board.post(f"verdict/{epoch}", action="wait")
            return {"action": "wait"}
        self.stale = 0
        verdict = {"action": "rewind", "path": str(self.best_path)}
        self.board.post(f"verdict/{epoch}", **verdict)
        return verdict


def make_data(seed):
    g = torch.Generator().manual_seed(seed)
    w = 0.4 * torch.randn(12, 1, generator=g)
    x = torch.randn(1600, 12, generator=g)
    y = torch.sin(x @ w) + 0.3 * (x[:, :1] * x[:, 1:2]) + 0.1 * torch.randn(1600, 1, generator=g)
    return TensorDataset(x[:1280], y[:1280]), (x[1280:], y[1280:])


def build(cfg):
    return nn.Sequential(nn.Linear(12, cfg.hidden), nn.Tanh(),
                         nn.Linear(cfg.hidden, cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, 1))


@torch.no_grad()
def held_out(model, data):
    model.eval()
    x, y = data
    out = nn.functional.mse_loss(model(x), y).item()
    model.train()
    return out


class Loop:
    def __init__(self, cfg, folder):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(cfg.seed)
        self.train_set, self.val = make_data(cfg.seed)
        self.model = DDP(build(cfg))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
        self.sampler = DistributedSampler(self.train_set, seed=cfg.seed)
        self.loader = DataLoader(self.train_set, batch_size=cfg.batch_size, sampler=self.sampler)
        self.board = NoticeBoard("loop")
        self.judge = Judge(cfg, self.board, folder)
        self.lr = cfg.lr

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total, n = 0.0, 0
        for x, y in self.loader:
            loss = nn.functional.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item() * len(x)
            n += len(x)
        return total / n

    def verdict(self, epoch):
        if self.rank == 0:
            score = held_out(self.model.module, self.val)
            out = self.judge.decide(epoch, score, self.model.module, self.opt)
            log.info("epoch %d held-out %.4f best %.4f -> %s", epoch, score, self.judge.best,
                     out["action"])
            return out
        return self.board.read(f"verdict/{epoch}")

    def apply(self, verdict):
        if verdict["action"] != "rewind":
            return
        state = torch.load(verdict["path"], weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.opt.load_state_dict(state["opt"])
        self.lr *= self.cfg.rewind_factor
        for group in self.opt.param_groups:
            group["lr"] = self.lr

    def fit(self):
        for epoch in range(self.cfg.epochs):
            t0 = time.time()
            loss = self.train_epoch(epoch)
            log.info("epoch %d train %.4f (%.1f s)", epoch, loss, time.time() - t0)
            self.apply(self.verdict(epoch))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--patience", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"%(asctime)s r{rank} %(message)s")
    holder = [tempfile.mkdtemp(prefix="run_") if rank == 0 else None]
    dist.broadcast_object_list(holder, src=0)
    cfg = Config(epochs=args.epochs, lr=args.lr, patience=args.patience)
    loop = Loop(cfg, Path(holder[0]))
    loop.fit()
    flat = torch.cat([p.detach().flatten() for p in loop.model.parameters()])
    log.info("weights norm %.5f", flat.norm().item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
