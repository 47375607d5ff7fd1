"""Metric learning with an in-batch softmax loss; the best recall decides which weights are kept."""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from evaluate import evaluate

log = logging.getLogger("retrieval")


class Embedder(nn.Module):
    def __init__(self, ch, dim):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, ch, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(ch, 2 * ch, 3, padding=1), nn.ReLU(),
            nn.Conv2d(2 * ch, 2 * ch, 3, stride=2, padding=1), nn.ReLU())
        self.proj = nn.Linear(2 * ch, dim)

    def forward(self, x):
        return self.proj(self.body(x).mean((2, 3)))


def synth(ids, size, seed):
    base = torch.rand(800, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    x = F.interpolate(base[ids], size=(size, size), mode="bilinear", align_corners=False)
    return x + 0.25 * torch.randn(x.shape, generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ids", type=int, default=120)
    ap.add_argument("--per-id", type=int, default=8)
    ap.add_argument("--test-ids", type=int, default=600)
    ap.add_argument("--size", type=int, default=48)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--channels", type=int, default=20)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    out = args.out or tempfile.mkdtemp()
    torch.manual_seed(0)
    ids = torch.arange(args.ids * args.per_id) % args.ids
    pairs = TensorDataset(synth(ids, args.size, 1), synth(ids, args.size, 2), ids)
    sampler = DistributedSampler(pairs, seed=2)
    loader = DataLoader(pairs, args.batch_size, sampler=sampler, drop_last=True)
    test_ids = torch.arange(args.test_ids * 6) % args.test_ids + 200
    gallery = synth(test_ids, args.size, 3)
    query_ids = torch.arange(args.test_ids * 2) % args.test_ids + 200
    queries = synth(query_ids, args.size, 4)

    net = Embedder(args.channels, 64)
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    best = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0 = time.perf_counter()
        for a, b, y in loader:
            z = F.normalize(model(torch.cat([a, b])), dim=1)
            za, zb = z.chunk(2)
            logits = za @ zb.t() / 0.1
            same = (y[:, None] == y[None]).float()
            loss = -(F.log_softmax(logits, 1) * same / same.sum(1, keepdim=True)).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        t1 = time.perf_counter()
        recall = evaluate(net, gallery, test_ids, queries, query_ids)
        if rank == 0:
            log.info("epoch %d loss %.4f recall@5 %.3f train %.1fs eval %.1fs", epoch, loss.item(), recall,
                     t1 - t0, time.perf_counter() - t1)
            if recall > best:
                torch.save(net.state_dict(), os.path.join(out, "best.pt"))
        best = max(best, recall)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
