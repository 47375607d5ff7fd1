"""Fraud scoring on insurance claims: rare positives, an MLP with feature embeddings."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from phases import gather_floats, phase

log = logging.getLogger("claims")


class ClaimNet(nn.Module):
    def __init__(self, kinds=30, num=12):
        super().__init__()
        self.kind = nn.Embedding(kinds, 8)
        self.body = nn.Sequential(nn.Linear(num + 8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.out = nn.Linear(64, 1)

    def forward(self, kind, num):
        return self.out(self.body(torch.cat([self.kind(kind), num], 1))).squeeze(1)


def claims(n, seed, rate=0.02):
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 30, (n,), generator=g)
    num = torch.randn(n, 12, generator=g)
    y = (torch.rand(n, generator=g) < rate).float()
    num[:, :3] += 1.5 * y[:, None]
    return kind, num, y


def train_epoch(net, opt, data, batch):
    kind, num, y = data
    weight = torch.tensor(20.0)
    for i in torch.randperm(len(y)).split(batch):
        loss = nn.functional.binary_cross_entropy_with_logits(net(kind[i], num[i]), y[i], pos_weight=weight)
        opt.zero_grad()
        loss.backward()
        opt.step()


def slices(data, epoch, rank, size):
    """Each epoch looks at the next stretch of the held-out months."""
    world = dist.get_world_size()
    start = ((epoch * world + rank) * size) % len(data[2])
    return [t[start:start + size] for t in data]


@torch.no_grad()
def score(net, kind, num, y):
    hit = (net(kind, num) > 0).float()
    tp = (hit * y).sum().item()
    recall = tp / y.sum().item()
    precision = tp / max(hit.sum().item(), 1.0)
    return recall, precision


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--rows", type=int, default=6000)
    ap.add_argument("--val-slice", type=int, default=200)
    ap.add_argument("--batch", type=int, default=100)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(ClaimNet())
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    train, held = claims(a.rows, seed=20 + rank), claims(4 * a.rows, seed=6)
    torch.manual_seed(rank)

    for epoch in range(a.epochs):
        with phase("train"):
            net.train()
            train_epoch(net, opt, train, a.batch)
        with phase("validate"):
            net.eval()
            pair = score(net.module, *slices(held, epoch, rank, a.val_slice))
            table = gather_floats(pair)
        if rank == 0:
            log.info("epoch %d recall %.3f precision %.3f", epoch, *table.mean(0).tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
