"""Two-model co-training: ranks 0,1 train model A, rank 2 trains model B; each team has its own process group."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("cotrain")


@dataclass
class Team:
    name: str
    ranks: tuple
    width: int
    lr: float
    group: object = None


@dataclass
class Config:
    epochs: int = 4
    batch_size: int = 16
    agree_weight: float = 0.3
    seed: int = 60


def teams_for(world):
    half = (world + 1) // 2
    return [Team("wide", tuple(range(half)), 48, 0.01), Team("narrow", tuple(range(half, world)), 16, 0.02)]


def setup_groups(teams, rank):
    for team in teams:
        team.group = dist.new_group(list(team.ranks))
    mine = next(t for t in teams if rank in t.ranks)
    leaders = [t.ranks[0] for t in teams]
    exchange = dist.new_group(leaders)
    if rank not in leaders:
        exchange = None
    log.info("rank %d plays for %s", rank, mine.name)
    return mine, exchange, leaders


def dataset(seed=0, n=288):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    w = torch.randn(10, 3, generator=torch.Generator().manual_seed(42))
    return TensorDataset(x, (x @ w).argmax(1))


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.net(x)


class CoTrainer:
    def __init__(self, cfg, team, exchange, leaders):
        self.cfg, self.team, self.exchange, self.leaders = cfg, team, exchange, leaders
        self.rank = dist.get_rank()
        self.local = team.ranks.index(self.rank)
        torch.manual_seed(cfg.seed)
        self.data, self.pool = dataset(1), dataset(2, 64).tensors[0]
        self.sampler = DistributedSampler(self.data, num_replicas=len(team.ranks), rank=self.local, seed=cfg.seed)
        self.loader = DataLoader(self.data, cfg.batch_size, sampler=self.sampler)
        self.model = DDP(Net(team.width), process_group=team.group)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=team.lr)
        self.targets = None

    @torch.no_grad()
    def swap_opinions(self):
        """Leaders trade their soft labels on the pool and hand them to their team."""
        own = self.model.module(self.pool).softmax(-1)
        other = torch.zeros_like(own)
        if self.exchange is not None:
            both = [torch.empty_like(own) for _ in self.leaders]
            dist.all_gather(both, own, group=self.exchange)
            other = both[1 - self.leaders.index(self.rank)]
        dist.broadcast(other, self.team.ranks[0], group=self.team.group)
        self.targets = other

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total = 0.0
        for i, (x, y) in enumerate(self.loader):
            at = (i * 8) % len(self.pool)
            logits = self.model(torch.cat([x, self.pool[at:at + 8]]))
            loss = nn.functional.cross_entropy(logits[:len(x)], y)
            if self.targets is not None:
                soft = self.targets[at:at + 8]
                loss = loss - self.cfg.agree_weight * (soft * logits[len(x):].log_softmax(-1)).sum(1).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total / len(self.loader)

    def fit(self):
        for epoch in range(self.cfg.epochs):
            loss = self.train_epoch(epoch)
            if self.exchange is not None:
                both = torch.tensor(loss)
                dist.all_reduce(both, group=self.exchange)
                log.info("team %s epoch %d loss %.4f, mean of the teams %.4f", self.team.name, epoch, loss,
                         both.item() / len(self.leaders))
            self.swap_opinions()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--batch-size", type=int, default=Config.batch_size)
    a = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    team, exchange, leaders = setup_groups(teams_for(dist.get_world_size()), dist.get_rank())
    CoTrainer(Config(epochs=a.epochs, batch_size=a.batch_size), team, exchange, leaders).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
