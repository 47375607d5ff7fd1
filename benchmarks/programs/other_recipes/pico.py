"""Click model with table-wise sharding: every embedding table lives on one rank, the MLP is data parallel."""
import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("dlrm")

TABLES = {"user": 600, "item": 400, "shop": 60, "city": 20, "device": 8}


@dataclass
class Config:
    dim: int = 8
    epochs: int = 3
    batch_size: int = 16
    dense_lr: float = 3e-3
    sparse_lr: float = 0.08
    seed: int = 33


def plan(tables, world):
    """Greedy: the largest table goes to the rank with the fewest rows so far."""
    load, owner = [0] * world, {}
    for name, rows in sorted(tables.items(), key=lambda kv: -kv[1]):
        r = load.index(min(load))
        owner[name] = r
        load[r] += rows
    return owner


class PooledExchange(torch.autograd.Function):
    """[world * batch, own_tables * dim] on the owners -> [batch, all_tables * dim] on everybody."""

    @staticmethod
    def forward(ctx, own, widths, batch):
        ctx.widths, ctx.batch = widths, batch
        rank, world = dist.get_rank(), dist.get_world_size()
        recv = [batch * w for w in widths]
        send = [batch * widths[rank]] * world
        out = own.new_empty(sum(recv))
        dist.all_to_all_single(out, own.reshape(-1).contiguous(), recv, send)
        return torch.cat([c.view(batch, -1) for c in out.split(recv)], 1)

    @staticmethod
    def backward(ctx, grad):
        rank, world = dist.get_rank(), dist.get_world_size()
        send = [ctx.batch * w for w in ctx.widths]
        recv = [ctx.batch * ctx.widths[rank]] * world
        flat = torch.cat([g.reshape(-1) for g in grad.split(list(ctx.widths), 1)])
        out = grad.new_empty(sum(recv))
        dist.all_to_all_single(out, flat, recv, send)
        return out.view(world * ctx.batch, ctx.widths[rank]), None, None


class TableShards(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        owner = plan(TABLES, self.world)
        self.columns = [[i for i, n in enumerate(TABLES) if owner[n] == r] for r in range(self.world)]
        self.widths = [len(c) * cfg.dim for c in self.columns]
        names = list(TABLES)
        self.tables = nn.ModuleList()
        for i in self.columns[self.rank]:
            gen = torch.Generator().manual_seed(cfg.seed * 10 + i)
            self.tables.append(nn.Embedding(TABLES[names[i]], cfg.dim,
                                            _weight=torch.randn(TABLES[names[i]], cfg.dim, generator=gen) * 0.1))

    def forward(self, ids):
        everyone = [torch.empty_like(ids) for _ in range(self.world)]
        dist.all_gather(everyone, ids.contiguous())
        whole = torch.cat(everyone)
        own = torch.cat([t(whole[:, i]) for t, i in zip(self.tables, self.columns[self.rank])], 1)
        return PooledExchange.apply(own, tuple(self.widths), len(ids))

    def scale_gradients(self):
        for t in self.tables:
            t.weight.grad /= self.world


class Dense(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(4, cfg.dim), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(cfg.dim * (len(TABLES) + 1), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense, emb):
        return self.top(torch.cat([self.bottom(dense), emb], 1)).squeeze(1)


def clicks(n, seed):
    g, w = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randint(0, rows, (n,), generator=g) for rows in TABLES.values()], 1)
    dense = torch.randn(n, 4, generator=g)
    logit = dense @ torch.randn(4, generator=w)
    for i, rows in enumerate(TABLES.values()):
        logit = logit + torch.randn(rows, generator=w)[ids[:, i]] * 0.8
    return TensorDataset(dense, ids, (torch.sigmoid(logit) > torch.rand(n, generator=g)).float())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--batch-size", type=int, default=Config.batch_size)
    a = p.parse_args()
    cfg = Config(epochs=a.epochs, batch_size=a.batch_size)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    shards, dense_net = TableShards(cfg), DDP(Dense(cfg))
    log.info("rank %d owns tables %s", rank, [list(TABLES)[i] for i in shards.columns[rank]])
    data = clicks(512, 1)
    sampler = DistributedSampler(data, seed=cfg.seed, drop_last=True)
    loader = DataLoader(data, cfg.batch_size, sampler=sampler, drop_last=True)
    dense_opt = torch.optim.Adam(dense_net.parameters(), lr=cfg.dense_lr)
    sparse_opt = torch.optim.Adagrad(shards.parameters(), lr=cfg.sparse_lr)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for dense, ids, y in loader:
            loss = F.binary_cross_entropy_with_logits(dense_net(dense, shards(ids)), y)
            dense_opt.zero_grad()
            sparse_opt.zero_grad()
            loss.backward()
            shards.scale_gradients()
            dense_opt.step()
            sparse_opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            log.info("epoch %d logloss %.4f", epoch, total.item() / len(loader) / world)
    out = Path("runs") / Path(__file__).stem
    if rank == 0:
        out.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    torch.save(shards.state_dict(), out / f"tables_{rank}.pt")
    if rank == 0:
        torch.save(dense_net.module.state_dict(), out / "dense.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
