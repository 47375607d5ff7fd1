"""Node classification with an edge-MLP SAGE layer, seeds are divided over the trainers."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from graph import FeatureServer, citation_like

log = logging.getLogger("sage")


class EdgeSAGE(nn.Module):
    def __init__(self, dim, classes, hidden=96):
        super().__init__()
        self.msg = nn.Sequential(nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.own = nn.Linear(dim, hidden)
        self.out = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x_dst, x_src, dst):
        m = self.msg(torch.cat([x_src, x_dst[dst]], 1))
        agg = torch.zeros(len(x_dst), m.size(1)).index_add_(0, dst, m)
        cnt = torch.zeros(len(x_dst)).index_add_(0, dst, torch.ones(len(dst))).clamp(min=1)
        return self.out(torch.cat([self.own(x_dst), agg / cnt.unsqueeze(1)], 1))


class SeedLoader:
    def __init__(self, seeds, batch, rank):
        self.seeds, self.batch = seeds, batch
        self.gen = torch.Generator().manual_seed(60 + rank)

    def __len__(self):
        return len(self.seeds) // self.batch

    def __iter__(self):
        order = self.seeds[torch.randperm(len(self.seeds), generator=self.gen)]
        for i in range(len(self)):
            yield order[i * self.batch:(i + 1) * self.batch]


def node_split(ids, rank, world):
    """Equal number of seeds for each trainer, dealt out in turn."""
    n = len(ids) // world
    return ids[:n * world][rank::world]


def forward(model, g, server, nodes):
    src, dst = g.in_edges(nodes)
    return model(server.pull(nodes), server.pull(src), dst)


@torch.no_grad()
def evaluate(model, g, server, ids):
    model.eval()
    hit = torch.zeros(2)
    for nodes in ids.split(256):
        hit += torch.tensor([(forward(model, g, server, nodes).argmax(1) == g.label[nodes]).sum().item(), len(nodes)])
    dist.all_reduce(hit)
    model.train()
    return (hit[0] / hit[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=96)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    torch.manual_seed(0)

    g = citation_like().reorder_by_degree()
    server = FeatureServer(g.feat)
    perm = torch.randperm(g.num_nodes, generator=torch.Generator().manual_seed(1))
    train_ids, val_ids = perm[:9000].sort().values, perm[9000:10000]
    seeds = node_split(train_ids, rank, world)
    loader = SeedLoader(seeds, args.batch_size, rank)
    if rank == 0:
        log.info("%d nodes, %d edges, %d seeds and %d steps per trainer", g.num_nodes, len(g.indices), len(seeds),
                 len(loader))
    model = DDP(EdgeSAGE(g.feat.size(1), 8))
    opt = torch.optim.Adam(model.parameters(), args.lr)

    for epoch in range(args.epochs):
        t0, total = time.time(), 0.0
        for nodes in loader:
            loss = F.cross_entropy(forward(model, g, server, nodes), g.label[nodes])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        t1 = time.time()
        acc = evaluate(model.module, g, server, val_ids[rank::world])
        if rank == 0:
            log.info("epoch %d loss %.4f val acc %.4f train %.1fs eval %.1fs", epoch, total / len(loader), acc,
                     t1 - t0, time.time() - t1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
