import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from exchange import HaloExchange
from graph import build_parts

log = logging.getLogger("gcn")


@dataclass
class Config:
    epochs: int = 30
    hidden: int = 24
    lr: float = 0.02
    dropout: float = 0.2
    seed: int = 9


class PartitionedGCN(nn.Module):
    def __init__(self, dim, hidden, classes, dropout):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(dim, hidden), nn.Linear(hidden, classes)
        self.dropout = dropout

    def forward(self, part):
        h = part.adj @ HaloExchange.apply(self.lin1(part.features), part)
        h = F.dropout(torch.relu(h), self.dropout, self.training)
        return part.adj @ HaloExchange.apply(self.lin2(h), part)


def reduce_gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


@torch.no_grad()
def accuracy(model, part):
    model.eval()
    hit = (model(part).argmax(1) == part.labels)[~part.train_mask]
    counts = torch.tensor([hit.sum().item(), hit.numel()], dtype=torch.float)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--hidden", type=int, default=Config.hidden)
    a = p.parse_args()
    cfg = Config(epochs=a.epochs, hidden=a.hidden)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    part = build_parts(dist.get_world_size(), seed=cfg.seed)[rank]
    torch.manual_seed(cfg.seed)
    model = PartitionedGCN(part.features.size(1), cfg.hidden, 4, cfg.dropout)
    torch.manual_seed(cfg.seed + 1 + rank)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr, weight_decay=5e-4)
    train_count = part.train_mask.sum().float()
    dist.all_reduce(train_count)
    log.info("rank %d: %d nodes, halo %d", rank, len(part.labels), part.adj.size(1) - len(part.labels))
    for epoch in range(cfg.epochs):
        model.train()
        out = model(part)
        loss = F.cross_entropy(out[part.train_mask], part.labels[part.train_mask], reduction="sum") / train_count
        opt.zero_grad()
        loss.backward()
        reduce_gradients(model)
        opt.step()
        if epoch % 10 == 9:
            total = loss.detach().clone()
            dist.all_reduce(total)
            acc = accuracy(model, part)
            if rank == 0:
                log.info("epoch %d loss %.4f test acc %.3f", epoch, total, acc)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
