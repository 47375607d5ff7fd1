import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from catalogue import Catalogue
from evaluation import evaluate


class Embedder(nn.Module):
    def __init__(self, dim=64, hidden=256, out=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out)
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class ProxyAnchor(nn.Module):
    def __init__(self, classes, dim=32, scale=16.0, margin=0.1):
        super().__init__()
        self.backbone = Embedder(out=dim)
        self.proxies = nn.Parameter(torch.randn(classes, dim))
        self.scale, self.margin = scale, margin

    def forward(self, x, y):
        cos = self.backbone(x) @ F.normalize(self.proxies, dim=-1).t()
        cos = cos - self.margin * F.one_hot(y, cos.size(1))
        return F.cross_entropy(self.scale * cos, y)


def main():
    p = argparse.ArgumentParser("deep metric learning")
    p.add_argument("--products", type=int, default=200)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"metric-{os.environ.get('MASTER_PORT', 0)}"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(5)
    train = Catalogue(args.products)
    test = Catalogue(args.products // 2, first=args.products, seed=1)
    sampler = DistributedSampler(train, seed=5, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(ProxyAnchor(args.products))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    best = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = model(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        recall, n = evaluate(model.module.backbone, test, rank, world)
        logging.info("epoch %d loss %.3f R@1 %.4f R@4 %.4f on %d embeddings", epoch, loss.item(), recall[1], recall[4], n)
        if rank == 0 and recall[1] > best:
            best = recall[1]
            os.makedirs(args.out, exist_ok=True)
            torch.save({"model": model.module.state_dict(), "recall": recall}, os.path.join(args.out, "best.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
