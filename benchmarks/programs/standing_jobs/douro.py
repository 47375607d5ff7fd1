"""Image-like classifier whose scoring runs in a separate process per rank.

The scorer gets a copy of the weights (numpy), walks over this rank's part of the
validation set and reports back over a queue.
"""
import argparse
import logging
import multiprocessing as mp
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("clf")


@dataclass
class Config:
    classes: int = 10
    features: int = 40
    hidden: int = 64
    train_n: int = 2000
    val_n: int = 6000
    batch: int = 50
    accum: int = 2
    epochs: int = 3
    lr: float = 0.02
    report_rank: int = 0
    seed: int = 11


def blobs(cfg):
    rng = np.random.default_rng(cfg.seed)
    centers = rng.normal(size=(cfg.classes, cfg.features)).astype(np.float32)
    n = cfg.train_n + cfg.val_n
    y = rng.integers(0, cfg.classes, size=n)
    x = centers[y] + 1.3 * rng.normal(size=(n, cfg.features)).astype(np.float32)
    x = x.astype(np.float32)
    return (x[: cfg.train_n], y[: cfg.train_n]), (x[cfg.train_n:], y[cfg.train_n:])


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.a = nn.Linear(cfg.features, cfg.hidden)
        self.b = nn.Linear(cfg.hidden, cfg.classes)

    def forward(self, x):
        return self.b(F.relu(self.a(x)))


def score_worker(queue, weights, x, y, detailed):
    """Runs in the helper process, numpy only."""
    h = np.maximum(x @ weights["a.weight"].T + weights["a.bias"], 0.0)
    z = h @ weights["b.weight"].T + weights["b.bias"]
    z = z - z.max(axis=1, keepdims=True)
    prob = np.exp(z)
    prob /= prob.sum(axis=1, keepdims=True)
    nll = -np.log(prob[np.arange(len(y)), y] + 1e-9)
    result = {"n": len(y), "nll": float(nll.sum()), "hits": int((prob.argmax(1) == y).sum())}
    if detailed:
        result["prob"] = prob.astype(np.float32)
        result["label"] = y
    queue.put(result)


class Scorer:
    def __init__(self, cfg, data, rank, world):
        self.cfg = cfg
        self.x, self.y = data[0][rank::world], data[1][rank::world]
        self.detailed = rank == cfg.report_rank
        self.ctx = mp.get_context("fork")

    def __call__(self, model):
        weights = {k: v.detach().numpy().copy() for k, v in model.state_dict().items()}
        queue = self.ctx.Queue()
        proc = self.ctx.Process(target=score_worker,
                                args=(queue, weights, self.x, self.y, self.detailed))
        proc.start()
        result = queue.get()
        proc.join()
        if proc.exitcode != 0:
            raise RuntimeError(f"scorer exited with {proc.exitcode}")
        return result


def reliability(result, bins=8):
    conf = result["prob"].max(axis=1)
    right = result["prob"].argmax(axis=1) == result["label"]
    which = np.minimum((conf * bins).astype(int), bins - 1)
    gap = 0.0
    for b in range(bins):
        m = which == b
        if m.any():
            gap += abs(conf[m].mean() - right[m].mean()) * m.mean()
    return gap


def train_epoch(model, loader, opt, cfg):
    model.train()
    opt.zero_grad()
    total = 0.0
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % cfg.accum == 0 or i + 1 == len(loader)
        if last:
            loss = F.cross_entropy(model(x), y)
            (loss / cfg.accum).backward()
            opt.step()
            opt.zero_grad()
        else:
            with model.no_sync():
                loss = F.cross_entropy(model(x), y)
                (loss / cfg.accum).backward()
        total += loss.item()
    return total / len(loader)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--val-n", type=int, default=6000)
    ap.add_argument("--report-rank", type=int, default=0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, val_n=args.val_n, report_rank=args.report_rank)
    torch.manual_seed(cfg.seed)
    (tx, ty), val = blobs(cfg)
    train_set = TensorDataset(torch.from_numpy(tx), torch.from_numpy(ty))
    sampler = DistributedSampler(train_set, seed=cfg.seed)
    loader = DataLoader(train_set, batch_size=cfg.batch, sampler=sampler)
    model = DDP(Net(cfg))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs)
    scorer = Scorer(cfg, val, rank, world)

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, opt, cfg)
        sched.step()
        log.info("epoch %d train loss %.4f", epoch, loss)
        part = scorer(model.module)
        sums = torch.tensor([part["n"], part["nll"], part["hits"]], dtype=torch.float64)
        dist.all_reduce(sums)
        log.info("epoch %d val nll %.4f acc %.3f", epoch, sums[1] / sums[0], sums[2] / sums[0])
        if scorer.detailed:
            log.info("calibration gap %.4f", reliability(part))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
