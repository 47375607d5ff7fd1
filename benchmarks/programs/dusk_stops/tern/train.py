"""Contrastive training with hard negatives; rank 0 rebuilds the negative index between the epochs."""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("retriever")


class Encoder(nn.Module):
    def __init__(self, dim_in=128, dim=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim_in, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class NegativeIndex:
    """k nearest other passages for every passage, mined with the current encoder."""

    def __init__(self, root, rank, store):
        self.root, self.rank, self.store = root, rank, store

    def path(self, epoch):
        return os.path.join(self.root, f"negatives-{epoch}.pt")

    @torch.no_grad()
    def mine(self, encoder, passages, epoch, k, per_block):
        rows = []
        emb = encoder(passages)
        for block in emb.split(100):
            sim = block @ emb.T
            rows.append(sim.topk(k + 1).indices[:, 1:])
            time.sleep(per_block)  # reads the text of the candidates from the document server
        torch.save(torch.cat(rows), self.path(epoch) + ".part")
        os.replace(self.path(epoch) + ".part", self.path(epoch))

    def refresh(self, encoder, passages, epoch, k=4, per_block=1.3):
        if self.rank == 0:
            t = time.time()
            self.mine(encoder, passages, epoch, k, per_block)
            log.info("index for epoch %d mined in %.1f s", epoch, time.time() - t)
            self.store.set(f"negatives/{epoch}", self.path(epoch))
        return torch.load(self.store.get(f"negatives/{epoch}").decode())


def stage_corpus(rank, n, dim, copy_seconds):
    """The passages are generated; the second host has to copy its share from the object store first."""
    if rank == 1:
        time.sleep(copy_seconds)
    g = torch.Generator().manual_seed(21)
    passages = torch.randn(n, dim, generator=g)
    return passages, passages + 0.8 * torch.randn(n, dim, generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--passages", type=int, default=1000)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--copy-seconds", type=float, default=9.0)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()

    passages, queries = stage_corpus(int(os.environ["RANK"]), args.passages, 128, args.copy_seconds)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")
    box = [args.out or (tempfile.mkdtemp(prefix="retr_") if rank == 0 else None)]
    dist.broadcast_object_list(box)
    os.makedirs(box[0], exist_ok=True)

    torch.manual_seed(0)
    model = DDP(Encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    index = NegativeIndex(box[0], rank, _get_default_store())
    g = torch.Generator().manual_seed(8)
    for epoch in range(args.epochs):
        negatives = index.refresh(model.module, passages, epoch)
        for step in range(1, args.steps + 1):
            idx = torch.randint(0, args.passages, (world, args.batch_size), generator=g)[rank]
            neg = passages[negatives[idx].flatten()]
            emb = model(torch.cat([queries[idx], passages[idx], neg]))
            q, p = emb[:len(idx)], emb[len(idx):]
            loss = F.cross_entropy(q @ p.T / 0.05, torch.arange(len(idx)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0 and step % 20 == 0:
                log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(box[0], "encoder.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
