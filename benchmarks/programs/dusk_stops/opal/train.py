"""Federated-like hospital data: each site (rank) owns a different number of volumes; DDP with Join."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("sites")
SITE_VOLUMES = [480, 330, 150]


class PatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv3d(1, 12, 3, stride=2, padding=1), nn.ReLU(),
                                 nn.Conv3d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
                                 nn.Conv3d(24, 32, 3, stride=2, padding=1), nn.ReLU())
        self.fc = nn.Linear(32 * 8, 3)

    def forward(self, x):
        return self.fc(self.enc(x).flatten(1))


class SiteVolumes:
    def __init__(self, site, n):
        g = torch.Generator().manual_seed(site)
        self.label = torch.randint(0, 3, (n,), generator=g)
        self.seed = torch.randint(0, 2 ** 31 - 1, (n,), generator=g)

    def __len__(self):
        return len(self.label)

    def batches(self, bs, epoch):
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(epoch))
        for idx in order.split(bs):
            vols = []
            for i in idx.tolist():
                v = torch.randn(1, 16, 16, 16, generator=torch.Generator().manual_seed(int(self.seed[i])))
                k = int(self.label[i])
                v[:, 4 * k:4 * k + 6, 5:11, 5:11] += 0.5
                vols.append(v)
            yield torch.stack(vols), self.label[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s site{rank} %(message)s")

    torch.manual_seed(0)
    model = DDP(PatchNet())
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=args.lr)
    data = SiteVolumes(rank, SITE_VOLUMES[rank % len(SITE_VOLUMES)])
    for epoch in range(args.epochs):
        seen, total = 0, 0.0
        # sites that are through shadow the collectives of the others
        with Join([model, opt]):
            for x, y in data.batches(args.batch_size, epoch):
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                seen += len(y)
                total += loss.item() * len(y)
            log.info("epoch %d: own %d volumes done, loss %.4f", epoch, seen, total / seen)
        stats = torch.tensor([float(seen), total], dtype=torch.float64)
        dist.all_reduce(stats)
        if rank == 0:
            log.info("epoch %d: %d volumes, loss %.4f", epoch, int(stats[0]), stats[1] / stats[0])
    if rank == 0:
        out = args.out or tempfile.mkdtemp(prefix="sites_")
        os.makedirs(out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(out, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
