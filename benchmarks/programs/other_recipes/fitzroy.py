"""Keyword spotting on per-site recordings of differing amount; uneven inputs are handled by the join context."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

log = logging.getLogger("keywords")


@dataclass
class Config:
    epochs: int = 3
    batch_size: int = 8
    lr: float = 0.15
    clip: float = 1.0
    seed: int = 71


SITE_RECORDINGS = (112, 72, 91)


class SiteStream(IterableDataset):
    """All recordings of one site in a new order each epoch; the last batch may be short."""

    def __init__(self, site, seed):
        self.site, self.seed, self.epoch = site, seed, 0
        g = torch.Generator().manual_seed(500 + site)
        n = SITE_RECORDINGS[site % len(SITE_RECORDINGS)]
        self.labels = torch.randint(0, 4, (n,), generator=g)
        tones = torch.tensor([3.0, 5.0, 8.0, 12.0])[self.labels]
        t = torch.linspace(0, 1, 64)
        self.waves = torch.sin(2 * torch.pi * tones[:, None] * t) + 0.4 * torch.randn(n, 64, generator=g)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + 1000 * self.epoch + self.site)
        for i in torch.randperm(len(self.labels), generator=g).tolist():
            yield self.waves[i], self.labels[i]


class KeywordNet(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, ch, 9, 2, 4), nn.GroupNorm(3, ch), nn.ReLU(),
                                  nn.Conv1d(ch, ch, 5, 2, 2), nn.GroupNorm(3, ch), nn.ReLU())
        self.head = nn.Linear(ch, 4)

    def forward(self, wave):
        return self.head(self.body(wave.unsqueeze(1)).mean(2))


class Tally:
    def __init__(self):
        self.loss, self.hits, self.count, self.steps = 0.0, 0, 0, 0

    def add(self, loss, logits, y):
        self.loss += loss.item() * len(y)
        self.hits += int((logits.argmax(1) == y).sum())
        self.count += len(y)
        self.steps += 1

    def reduced(self):
        t = torch.tensor([self.loss, self.hits, self.count], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[2]).item(), (t[1] / t[2]).item(), int(t[2])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--batch-size", type=int, default=Config.batch_size)
    a = p.parse_args()
    cfg = Config(epochs=a.epochs, batch_size=a.batch_size)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg.seed)
    stream = SiteStream(rank, cfg.seed)
    loader = DataLoader(stream, cfg.batch_size)
    model = DDP(KeywordNet())
    # plain SGD: there is no optimizer state that could fall behind on a rank that has joined
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        for group in opt.param_groups:
            group["lr"] = cfg.lr * 0.5 ** epoch
        stream.set_epoch(epoch)
        tally = Tally()
        model.train()
        with Join([model], divide_by_initial_world_size=False):
            for wave, y in loader:
                logits = model(wave)
                loss = nn.functional.cross_entropy(logits, y)
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
                opt.step()
                tally.add(loss.detach(), logits.detach(), y)
        log.info("rank %d epoch %d: %d steps", rank, epoch, tally.steps)
        loss, acc, n = tally.reduced()
        if rank == 0:
            log.info("epoch %d loss %.4f acc %.3f over %d recordings", epoch, loss, acc, n)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
