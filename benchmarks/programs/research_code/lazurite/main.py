"""Graph regression with node-budget batches; ranks have different numbers of batches and use Join."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("graph")


@dataclass
class Cfg:
    graphs: int = 300
    budget: int = 160
    width: int = 40
    layers: int = 2
    epochs: int = 4
    lr: float = 0.03
    seed: int = 16


class Graphs(Dataset):
    """Random graphs; the target is a smooth function of degrees and features."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            m = int(torch.randint(5, 30, (1,), generator=g))
            x = torch.randn(m, 6, generator=g)
            e = torch.randint(0, m, (2, 3 * m), generator=g)
            deg = torch.zeros(m).index_add(0, e[1], torch.ones(3 * m))
            y = (x[:, 0] * deg / 3).mean() + (x[:, 1] * x[:, 2]).mean()
            self.items.append((x, e, y))
        self.sizes = [len(x) for x, _, _ in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class NodeBudgetBatches:
    """Deals the shuffled graphs to the ranks, then packs each rank's part under a node budget."""

    def __init__(self, sizes, budget, seed):
        self.sizes, self.budget, self.seed, self.epoch = sizes, budget, seed, 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + 31 * self.epoch)
        mine = torch.randperm(len(self.sizes), generator=g).tolist()[dist.get_rank()::dist.get_world_size()]
        cur, used = [], 0
        for i in mine:
            if cur and used + self.sizes[i] > self.budget:
                yield cur
                cur, used = [], 0
            cur.append(i)
            used += self.sizes[i]
        if cur:
            yield cur
        self.epoch += 1


def collate(batch):
    xs, es, ys, gid, off = [], [], [], [], 0
    for k, (x, e, y) in enumerate(batch):
        xs.append(x), es.append(e + off), ys.append(y), gid.append(torch.full((len(x),), k))
        off += len(x)
    return torch.cat(xs), torch.cat(es, 1), torch.cat(gid), torch.stack(ys)


class GNN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.inp = nn.Linear(6, c.width)
        self.msg = nn.ModuleList(nn.Linear(2 * c.width, c.width) for _ in range(c.layers))
        self.norm = nn.ModuleList(nn.LayerNorm(c.width) for _ in range(c.layers))
        self.out = nn.Sequential(nn.Linear(c.width, c.width), nn.ReLU(), nn.Linear(c.width, 1))

    def forward(self, x, e, gid):
        h = self.inp(x)
        for m, n in zip(self.msg, self.norm):
            agg = torch.zeros_like(h).index_add(0, e[1], h[e[0]])
            h = n(h + F.relu(m(torch.cat([h, agg], 1))))
        k = int(gid.max()) + 1
        cnt = torch.zeros(k).index_add(0, gid, torch.ones(len(gid)))[:, None]
        return self.out(torch.zeros(k, h.shape[1]).index_add(0, gid, h) / cnt).squeeze(1)


def train_epoch(model, opt, loader):
    sums, steps = torch.zeros(2, dtype=torch.float64), 0
    with Join([model]):
        for x, e, gid, y in loader:
            loss = F.mse_loss(model(x, e, gid), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            sums += torch.tensor([loss.item() * len(y), len(y)], dtype=torch.float64)
            steps += 1
    return sums, steps


@torch.no_grad()
def evaluate(net, ds):
    net.eval()
    s = torch.zeros(2, dtype=torch.float64)
    for i in range(dist.get_rank(), len(ds), dist.get_world_size()):
        x, e, gid, y = collate([ds[i]])
        s += torch.tensor([(net(x, e, gid) - y).abs().sum().item(), 1.0], dtype=torch.float64)
    dist.all_reduce(s)
    net.train()
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--budget", type=int, default=160)
    a = ap.parse_args()
    c = Cfg(epochs=a.epochs, budget=a.budget)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(c.seed)
    train, val = Graphs(c.graphs, 1), Graphs(80, 2)
    loader = DataLoader(train, batch_sampler=NodeBudgetBatches(train.sizes, c.budget, c.seed), collate_fn=collate)
    model = DDP(GNN(c))
    opt = torch.optim.SGD(model.parameters(), lr=c.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)
    for epoch in range(c.epochs):
        sums, steps = train_epoch(model, opt, loader)
        sched.step()
        counts = [torch.zeros(1) for _ in range(world)]
        dist.all_gather(counts, torch.tensor([float(steps)]))
        dist.all_reduce(sums)
        log.info("epoch %d mse %.4f val mae %.4f graphs %d batches %s", epoch, sums[0] / sums[1], evaluate(model.module, val),
                 int(sums[1]), [int(v) for v in counts])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
