"""Retrieval training: hard negatives are mined by one worker and refreshed once on the way."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel as DDP

from artifacts import Artifacts

log = logging.getLogger("retrieval")


class Tower(nn.Module):
    def __init__(self, dim, out=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, out))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


@torch.no_grad()
def mine(net, docs, queries, positives, artifacts, name, chunk=40):
    """Nearest wrong documents for every query; exact search with a product of both similarities."""
    d = net(docs)
    best = torch.empty(len(queries), dtype=torch.long)
    for i in range(0, len(queries), chunk):
        sim = net(queries[i : i + chunk]) @ d.T
        raw = torch.cdist(queries[i : i + chunk], docs, compute_mode="donot_use_mm_for_euclid_dist")
        score = sim - 0.05 * raw
        score[torch.arange(len(sim)), positives[i : i + chunk]] = -torch.inf
        best[i : i + chunk] = score.argmax(-1)
        artifacts.progress(name, min(1.0, (i + chunk) / len(queries)))
    return best


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--docs", type=int, default=9000)
    p.add_argument("--queries", type=int, default=4000)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--steps-per-round", type=int, default=70)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")

    g = torch.Generator().manual_seed(3)
    docs = torch.randn(args.docs, args.dim, generator=g)
    positives = torch.randint(0, args.docs, (args.queries,), generator=g)
    queries = docs[positives] + 0.4 * torch.randn(args.queries, args.dim, generator=g)

    torch.manual_seed(0)
    model = DDP(Tower(args.dim))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    artifacts = Artifacts(_get_default_store(), owner=0)
    pick = torch.Generator().manual_seed(10 + rank)

    for rnd in range(args.rounds):
        name = f"negatives-{rnd}"
        if rank == artifacts.owner:
            start = time.time()
            artifacts.publish(name, mine(model.module, docs, queries, positives, artifacts, name))
            log.info("mined round %d in %.1fs", rnd, time.time() - start)
        negatives = artifacts.fetch(name)
        for step in range(1, args.steps_per_round + 1):
            i = torch.randint(0, args.queries, (args.batch,), generator=pick)
            stacked = torch.cat([queries[i], docs[positives[i]], docs[negatives[i]]])
            q, pos, neg = model(stacked).split(args.batch)
            logits = torch.cat([q @ pos.T, (q * neg).sum(-1, keepdim=True)], 1) / 0.07
            loss = F.cross_entropy(logits, torch.arange(args.batch))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            if step % 35 == 0 and rank == 0:
                log.info("round %d step %3d  loss %.4f", rnd, step, loss.item())

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
