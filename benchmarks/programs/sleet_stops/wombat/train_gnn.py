"""Molecule-like graphs of very different size, message passing network."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn

from engine import Engine


class Net(nn.Module):
    def __init__(self, dim=32, rounds=2):
        super().__init__()
        self.inp = nn.Linear(8, dim)
        self.msg = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(rounds))
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, x, edge, graph, n):
        h = self.inp(x)
        for f in self.msg:
            agg = torch.zeros_like(h).index_add(0, edge[1], h[edge[0]])
            h = h + torch.tanh(f(torch.cat([h, agg], 1)))
        pooled = torch.zeros(n, h.size(1)).index_add(0, graph, h)
        return self.out(pooled).squeeze(1)


def make_graphs(n, seed):
    g = torch.Generator().manual_seed(seed)
    graphs = []
    for _ in range(n):
        size = int(torch.empty(1).log_normal_(2.5, 0.8, generator=g).clamp(4, 120))
        x = torch.randn(size, 8, generator=g)
        edge = torch.randint(0, size, (2, 2 * size), generator=g)
        graphs.append((x, edge, x[:, 0].mean() + 0.1 * size ** 0.5))
    return graphs


def collate_loss(net, graphs):
    xs, es, ids, shift = [], [], [], 0
    for k, (x, edge, _) in enumerate(graphs):
        xs.append(x)
        es.append(edge + shift)
        ids.append(torch.full((len(x),), k))
        shift += len(x)
    pred = net(torch.cat(xs), torch.cat(es, 1), torch.cat(ids), len(graphs))
    return nn.functional.smooth_l1_loss(pred, torch.stack([g[2] for g in graphs]))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--graphs", type=int, default=320)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--limit", type=int, default=330)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    eng = Engine(net, torch.optim.Adam(net.parameters(), lr=2e-3), collate_loss, args.limit)
    mine = make_graphs(args.graphs, seed=dist.get_rank())
    for epoch in range(args.epochs):
        for i in range(0, len(mine), args.batch):
            loss = eng.step(mine[i:i + args.batch])
        if dist.get_rank() == 0:
            logging.info("epoch %d loss %.4f, %d retries so far", epoch, loss, eng.retries)
    dist.barrier()
    dist.destroy_process_group()
