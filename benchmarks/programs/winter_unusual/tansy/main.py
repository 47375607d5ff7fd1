"""Pool-based active learning: the labelled set grows every round, the classifier starts afresh."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("tansy")


def make_pool(n, d=20, classes=5):
    g = torch.Generator().manual_seed(61)
    x = torch.randn(n, d, generator=g)
    w = torch.randn(d, 32, generator=g) / d ** 0.5
    v = torch.randn(32, classes, generator=g)
    y = (torch.sin(x @ w * 0.9) @ v).argmax(1)
    return TensorDataset(x, y)


class Net(nn.Module):
    def __init__(self, d=20, classes=5, h=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.head = nn.Linear(h, classes)

    def forward(self, x):
        return self.head(self.body(x))


class Round:
    def __init__(self, number, data, labelled, args):
        self.number, self.args = number, args
        subset = Subset(data, labelled.tolist())
        self.sampler = DistributedSampler(subset, seed=500 + number)
        self.loader = DataLoader(subset, batch_size=args.batch, sampler=self.sampler)
        torch.manual_seed(40 + number)
        self.model = DDP(Net())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3, weight_decay=0.02)

    def fit(self):
        loss = torch.zeros(())
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
        return loss.detach()


@torch.no_grad()
def acquire(net, x, unlabelled, k, rank, world):
    """Smallest margin first. Each rank scores its slice of the pool; equal slices padded with +inf."""
    net.eval()
    per = -(-len(unlabelled) // world)
    mine = unlabelled[rank * per : (rank + 1) * per]
    margins = torch.full((per,), float("inf"))
    for i in range(0, len(mine), 1024):
        top = net(x[mine[i : i + 1024]]).softmax(1).topk(2, dim=1).values
        margins[i : i + len(top)] = top[:, 0] - top[:, 1]
    everyone = torch.empty(per * world)
    dist.all_gather_into_tensor(everyone, margins)
    return unlabelled[everyone[: len(unlabelled)].topk(k, largest=False).indices]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--start", type=int, default=512)
    ap.add_argument("--query", type=int, default=512)
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--batch", type=int, default=64)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    data = make_pool(22_000)
    x, y = data.tensors
    test = torch.arange(20_000, 22_000)[rank::world]
    perm = torch.randperm(20_000, generator=torch.Generator().manual_seed(0))
    labelled, unlabelled = perm[: args.start], perm[args.start :].sort().values

    for rnd in range(args.rounds):
        job = Round(rnd, data, labelled, args)
        loss = job.fit()
        net = job.model.module
        net.eval()
        with torch.no_grad():
            hit = (net(x[test]).argmax(1) == y[test]).sum()
        dist.all_reduce(hit)
        log.info("round %d labels %d last loss %.4f test accuracy %.3f", rnd, len(labelled), loss.item(), hit.item() / 2000)
        if rnd + 1 < args.rounds:
            picked = acquire(net, x, unlabelled, args.query, rank, world)
            labelled = torch.cat([labelled, picked])
            unlabelled = unlabelled[~torch.isin(unlabelled, picked)]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
