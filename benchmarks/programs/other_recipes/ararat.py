"""Federated averaging: clients with differing amounts of data, weighted by their sample counts."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("fedavg")


@dataclass
class Config:
    rounds: int = 5
    local_epochs: int = 2
    batch_size: int = 16
    lr: float = 0.05
    prox: float = 0.01
    server_momentum: float = 0.5
    seed: int = 4


CLIENT_SIZES = (240, 96, 48)


def client_data(rank):
    g = torch.Generator().manual_seed(1000 + rank)
    n = CLIENT_SIZES[rank % len(CLIENT_SIZES)]
    prior = torch.full((4,), 1.0)
    prior[rank % 4] = 4.0
    y = torch.multinomial(prior, n, replacement=True, generator=g)
    centers = torch.randn(4, 10, generator=torch.Generator().manual_seed(1)) * 1.3
    return TensorDataset(centers[y] + torch.randn(n, 10, generator=g), y)


def test_data():
    g = torch.Generator().manual_seed(5)
    y = torch.randint(0, 4, (200,), generator=g)
    centers = torch.randn(4, 10, generator=torch.Generator().manual_seed(1)) * 1.3
    return centers[y] + torch.randn(200, 10, generator=g), y


def build():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))


class Client:
    def __init__(self, cfg, rank, model):
        self.cfg, self.model = cfg, model
        self.gen = torch.Generator().manual_seed(cfg.seed + 50 * rank)
        self.data = client_data(rank)
        self.loader = DataLoader(self.data, cfg.batch_size, shuffle=True, generator=self.gen)

    def fit(self, anchor):
        opt = torch.optim.SGD(self.model.parameters(), lr=self.cfg.lr)
        self.model.train()
        seen, total = 0, 0.0
        for _ in range(self.cfg.local_epochs):
            for x, y in self.loader:
                loss = nn.functional.cross_entropy(self.model(x), y)
                drift = sum((p - a).pow(2).sum() for p, a in zip(self.model.parameters(), anchor))
                opt.zero_grad()
                (loss + 0.5 * self.cfg.prox * drift).backward()
                opt.step()
                total += loss.item() * len(x)
                seen += len(x)
        return total, seen


class Server:
    """Replicated on every rank: all ranks hold the same global weights and server momentum."""

    def __init__(self, cfg, model):
        self.cfg = cfg
        self.weights = [p.detach().clone() for p in model.parameters()]
        for w in self.weights:
            dist.broadcast(w, 0)
        self.velocity = [torch.zeros_like(w) for w in self.weights]

    @torch.no_grad()
    def push(self, model):
        for p, w in zip(model.parameters(), self.weights):
            p.copy_(w)

    @torch.no_grad()
    def aggregate(self, model, samples):
        total = torch.tensor(float(samples))
        dist.all_reduce(total)
        share = samples / total.item()
        for p, w, v in zip(model.parameters(), self.weights, self.velocity):
            delta = (p - w) * share
            dist.all_reduce(delta)
            v.mul_(self.cfg.server_momentum).add_(delta)
            w.add_(v)


@torch.no_grad()
def score(model):
    x, y = test_data()
    model.eval()
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=Config.rounds)
    p.add_argument("--local-epochs", type=int, default=Config.local_epochs)
    a = p.parse_args()
    cfg = Config(rounds=a.rounds, local_epochs=a.local_epochs)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg.seed)
    model = build()
    server, client = Server(cfg, model), Client(cfg, rank, model)
    log.info("client %d holds %d samples", rank, len(client.data))
    for rnd in range(cfg.rounds):
        server.push(model)
        total, seen = client.fit(server.weights)
        server.aggregate(model, len(client.data))
        stats = torch.tensor([total, seen], dtype=torch.float64)
        dist.all_reduce(stats)
        server.push(model)
        if rank == 0:
            log.info("round %d loss %.4f accuracy %.3f", rnd, stats[0] / stats[1], score(model))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
