"""Metric learning with a batch-hard triplet loss over all ranks and a running retrieval metric."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

log = logging.getLogger("metric")


@dataclass
class Config:
    epochs: int = 8
    classes_per_batch: int = 4
    shots: int = 4
    steps_per_epoch: int = 30
    dim: int = 4096
    lr: float = 5e-4
    margin: float = 0.2
    log_every: int = 10
    seed: int = 37


class PKSampler(Sampler):
    """P classes x K shots; every rank draws other classes of the same global shuffle."""

    def __init__(self, labels, cfg):
        self.cfg, self.labels, self.epoch = cfg, labels, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.by_class = [(labels == c).nonzero().flatten() for c in range(int(labels.max()) + 1)]

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.cfg.steps_per_epoch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.cfg.seed * 100 + self.epoch)
        for _ in range(len(self)):
            classes = torch.randperm(len(self.by_class), generator=g)
            picks = [self.by_class[c][torch.randperm(len(self.by_class[c]), generator=g)[: self.cfg.shots]]
                     for c in classes[: self.cfg.classes_per_batch * self.world].tolist()]
            mine = picks[self.rank::self.world]
            yield torch.cat(mine).tolist()


class Parts(Dataset):
    def __init__(self, n=480, classes=24):
        g = torch.Generator().manual_seed(0)
        self.labels = torch.arange(n) % classes
        self.x = torch.randn(classes, 32, generator=g)[self.labels] + 0.8 * torch.randn(n, 32, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.x[i], self.labels[i]


def gather_all(x):
    """The global batch as a memory of constants, as in cross-batch memory training."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    return torch.cat(parts)


class RetrievalAccuracy:
    """Recall@1 among all embeddings seen in an epoch, collected over the ranks."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.embeddings, self.labels = [], []

    def update(self, emb, labels):
        self.embeddings.append(emb)
        self.labels.append(labels)

    def compute(self, limit=640):
        emb = torch.cat(self.embeddings[-limit // 32:])
        lab = torch.cat(self.labels[-limit // 32:])
        sim = emb @ emb.t()
        sim.fill_diagonal_(-1)
        return (lab[sim.argmax(1)] == lab).float().mean().item()


def batch_hard(anchor, labels, pool, pool_labels, margin):
    d = torch.cdist(anchor, pool)
    same = labels[:, None] == pool_labels[None]
    hardest_pos = (d * same).max(1).values
    hardest_neg = d.masked_fill(same, float("inf")).min(1).values
    return F.softplus(hardest_pos - hardest_neg + margin).mean()


class Trainer:
    def __init__(self, cfg):
        self.cfg, self.rank = cfg, dist.get_rank()
        torch.manual_seed(cfg.seed)
        data = Parts()
        self.sampler = PKSampler(data.labels, cfg)
        self.loader = DataLoader(data, batch_sampler=self.sampler)
        self.model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, cfg.dim)))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 2, 0.7)
        self.metric = RetrievalAccuracy()

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total = 0.0
        for x, y in self.loader:
            emb = F.normalize(self.model(x), dim=1)
            pool, pool_y = gather_all(emb), gather_all(y)
            loss = batch_hard(emb, y, pool, pool_y, self.cfg.margin)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.metric.update(pool, pool_y)
            total += loss.item()
        self.sched.step()
        return total / len(self.loader)

    def fit(self):
        for epoch in range(self.cfg.epochs):
            loss = self.train_epoch(epoch)
            recall = self.metric.compute()
            if self.rank == 0:
                log.info("epoch %d loss %.4f recall@1 %.3f", epoch, loss, recall)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--dim", type=int, default=Config.dim)
    a = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    Trainer(Config(epochs=a.epochs, dim=a.dim)).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
