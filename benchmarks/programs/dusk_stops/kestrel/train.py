"""Streaming text classification: HF iterable dataset, split by node, filtered on the fly (DDP)."""
import argparse
import logging
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import build_stream, collate
from tracker import MetricsTracker, in_step

log = logging.getLogger("stream-train")


class BagClassifier(nn.Module):
    def __init__(self, vocab, dim=128, hidden=512, classes=4):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim, mode="mean", padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, classes))

    def forward(self, ids):
        return self.mlp(self.emb(ids))


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--shards", type=int, default=8)
    p.add_argument("--per-shard", type=int, default=330)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--min-tokens", type=int, default=6)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--num-workers", type=int, default=1)
    p.add_argument("--out", default=None)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {rank}] %(message)s")

    vocab = 600
    stream = build_stream(args.shards, args.per_shard, vocab, args.min_tokens, rank, world)
    torch.manual_seed(0)
    model = DDP(BagClassifier(vocab))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step = 0
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        loader = DataLoader(stream, batch_size=args.batch_size, num_workers=args.num_workers,
                            collate_fn=collate, drop_last=True)
        tracker = MetricsTracker()
        for ids, labels in in_step(loader):
            logits = model(ids)
            loss = F.cross_entropy(logits, labels)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            tracker.update(loss=loss.item() * len(labels), hits=int((logits.argmax(1) == labels).sum()),
                           samples=len(labels))
        totals = tracker.reduce()
        if rank == 0:
            log.info("epoch %d: %d steps, loss %.4f acc %.3f over %d samples", epoch, step,
                     totals["loss"] / totals["samples"], totals["hits"] / totals["samples"], totals["samples"])
            out = args.out or tempfile.gettempdir()
            os.makedirs(out, exist_ok=True)
            torch.save(model.module.state_dict(), os.path.join(out, f"bag-{os.getpid()}.pt"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
