"""Next-item recommender with checkpoints by wall clock, so that slow jobs lose little work."""
import argparse
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("rec")


@dataclass
class Config:
    users: int = 900
    items: int = 120
    history: int = 12
    dim: int = 24
    batch: int = 20
    epochs: int = 24
    lr: float = 4e-3
    save_seconds: float = 0.7
    seed: int = 51


class Histories(Dataset):
    def __init__(self, cfg):
        rng = np.random.default_rng(cfg.seed)
        jump = rng.integers(1, 6, size=cfg.users)
        start = rng.integers(0, cfg.items, size=cfg.users)
        walk = start[:, None] + jump[:, None] * np.arange(cfg.history + 1)
        self.rows = torch.from_numpy(walk % cfg.items)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i, :-1], self.rows[i, -1]


class Recommender(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.items = nn.Embedding(cfg.items, cfg.dim)
        self.mix = nn.Sequential(nn.Linear(cfg.history * cfg.dim, 64), nn.ReLU(),
                                 nn.Linear(64, cfg.dim))

    def forward(self, hist):
        query = self.mix(self.items(hist).flatten(1))
        return query @ self.items.weight.T


class Clock:
    def __init__(self, every):
        self.every = every
        self.last = time.monotonic()

    def due(self):
        now = time.monotonic()
        if now - self.last < self.every:
            return False
        self.last = now
        return True


class Saver:
    """Saves weights from rank 0 together with the random state of every rank."""

    def __init__(self, folder, cfg):
        self.folder = folder
        self.clock = Clock(cfg.save_seconds)
        self.count = 0

    def maybe(self, model, opt, step):
        due = torch.tensor([self.clock.due()], dtype=torch.uint8)
        dist.broadcast(due, src=0)
        if not due.item():
            return False
        states = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(torch.get_rng_state(), states, dst=0)
        if states is not None:
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "rng": states,
                        "step": step}, self.folder / "latest.pt")
            log.info("saved at step %d", step)
        self.count += 1
        return True


def popularity_prior(data, cfg, rounds):
    """Log frequency of every item, averaged over bootstrap rounds."""
    g = torch.Generator().manual_seed(cfg.seed)
    total = torch.zeros(cfg.items)
    for _ in range(rounds):
        counts = torch.zeros(cfg.items)
        for i in torch.randint(len(data), (len(data),), generator=g).tolist():
            hist, target = data[i]
            counts.index_add_(0, hist, torch.ones(len(hist)))
            counts[target] += 1
        total += (counts + 1).log()
    return total / rounds


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=24)
    ap.add_argument("--save-seconds", type=float, default=0.7)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, save_seconds=args.save_seconds)
    box = [tempfile.mkdtemp(prefix="rec_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)

    torch.manual_seed(cfg.seed)
    data = Histories(cfg)
    sampler = DistributedSampler(data, seed=cfg.seed)
    loader = DataLoader(data, cfg.batch, sampler=sampler)
    model = DDP(Recommender(cfg))
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    if rank == 0:
        prior = popularity_prior(data, cfg, rounds=40)
        log.info("item entropy %.3f", -(prior.softmax(0) * prior.log_softmax(0)).sum())

    saver = Saver(Path(box[0]), cfg)
    step = 0
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        tally = torch.zeros(3)
        for hist, target in loader:
            out = model(hist)
            loss = F.cross_entropy(out, target)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            top = out.topk(5, dim=1).indices
            tally += torch.tensor([loss.item() * len(hist), len(hist),
                                   (top == target[:, None]).any(1).sum().item()])
            saver.maybe(model.module, opt, step)
        dist.all_reduce(tally)
        log.info("epoch %d loss %.4f hit@5 %.3f", epoch, tally[0] / tally[1], tally[2] / tally[1])
    log.info("%d checkpoints", saver.count)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
