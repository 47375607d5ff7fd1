import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import runtime


def make_items(cfg):
    g = torch.Generator().manual_seed(0)
    label = torch.arange(cfg["items"]) % cfg["groups"]
    centre = torch.randn(cfg["groups"], cfg["dim"], generator=g)
    return centre[label] + 0.9 * torch.randn(cfg["items"], cfg["dim"], generator=g), label


class HardNegatives:
    """Searches, for every anchor, the nearest item of another group. The index lives in the first process."""

    def __init__(self, x, label, probes):
        self.x, self.label, self.probes = x, label, probes

    @torch.no_grad()
    def search(self, net):
        z = F.normalize(net(self.x), dim=1)
        best = torch.full((len(z),), -2.0)
        where = torch.zeros(len(z), dtype=torch.long)
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(1))
        for part in order.chunk(self.probes):
            sim = z @ z[part].T
            sim[self.label[:, None] == self.label[part][None]] = -2.0
            top, pos = sim.max(1)
            where = torch.where(top > best, part[pos], where)
            best = torch.maximum(top, best)
            time.sleep(0.06)
        return where

    def refresh(self, net, rank):
        out = self.search(net) if rank == 0 else torch.empty(len(self.x), dtype=torch.long)
        dist.broadcast(out, src=0)
        return out


def epoch_order(n, epoch, rank, world):
    perm = torch.randperm(n, generator=torch.Generator().manual_seed(50 + epoch))
    return perm[rank::world]


def main(path="config.json"):
    cfg = runtime.load_config(path)
    rank, world = runtime.start(cfg["dist"])
    torch.manual_seed(6)
    x, label = make_items(cfg["data"])
    net = DDP(nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 16)))
    opt = torch.optim.SGD(net.parameters(), lr=cfg["optim"]["lr"])
    miner = HardNegatives(x, label, cfg["mine"]["probes"])
    negatives = (torch.arange(len(x)) + 1) % len(x)

    for epoch in range(cfg["optim"]["epochs"]):
        for part in epoch_order(len(x), epoch, rank, world).split(cfg["optim"]["batch"]):
            same = (part + cfg["data"]["groups"]) % len(x)
            z = net(torch.cat([x[part], x[same], x[negatives[part]]]))
            a, p, n = F.normalize(z, dim=1).chunk(3)
            loss = F.triplet_margin_loss(a, p, n, margin=0.4)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
        if epoch == 0:
            negatives = miner.refresh(net.module, rank)
    runtime.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
