"""Dense retrieval with hard negatives from an index that is refreshed while training (ANCE)."""
import argparse
import logging
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class BiEncoder(nn.Module):
    def __init__(self, vocab=4000, dim=96):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.q = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.d = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, query, docs):
        b, n, t = docs.shape
        q = F.normalize(self.q(self.emb(query)), dim=-1)
        d = F.normalize(self.d(self.emb(docs.view(b * n, t))), dim=-1).view(b, n, -1)
        return 20 * torch.einsum("bd,bnd->bn", q, d)

    def passages(self, docs):
        return F.normalize(self.d(self.emb(docs)), dim=-1)


def corpus(n_docs, n_queries, vocab=4000, topics=150):
    g = torch.Generator().manual_seed(1)
    words = torch.randint(0, vocab, (topics, 60), generator=g)
    topic = torch.randint(0, topics, (n_docs,), generator=g)
    docs = words[topic].gather(1, torch.randint(0, 60, (n_docs, 32), generator=g))
    gold = torch.randint(0, n_docs, (n_queries,), generator=g)
    queries = docs[gold].gather(1, torch.randint(0, 32, (n_queries, 8), generator=g))
    return docs, queries, gold


@torch.no_grad()
def mine(model, docs, queries, gold, depth):
    """Full pass over passages and queries, then the best wrong passages per query."""
    index = torch.cat([model.passages(c) for c in docs.split(512)])
    out, ranks = [], []
    for q, g in zip(queries.split(128), gold.split(128)):
        s = F.normalize(model.q(model.emb(q)), dim=-1) @ index.T
        ranks.append((s > s.gather(1, g[:, None])).sum(1))
        s.scatter_(1, g[:, None], -2.0)
        out.append(s.topk(depth, 1).indices)
    return torch.cat(out), (1.0 / (1 + torch.cat(ranks).float())).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--refresh", type=int, default=30)
    ap.add_argument("--global-batch", type=int, default=64)
    ap.add_argument("--negatives", type=int, default=7)
    ap.add_argument("--docs", type=int, default=20_000)
    ap.add_argument("--queries", type=int, default=4_000)
    args = ap.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(hours=2))     # a refresh takes long on the real corpus
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    docs, queries, gold = corpus(args.docs, args.queries)
    torch.manual_seed(2)
    model = DDP(BiEncoder())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    shared = torch.Generator().manual_seed(3)
    hard = torch.empty(args.queries, 20, dtype=torch.long)
    order = torch.randperm(args.queries, generator=shared)

    for step in range(args.steps):
        if step % args.refresh == 0:
            if rank == 0:       # the index lives in the memory of one node
                found, mrr = mine(model.module, docs, queries, gold, 20)
                hard.copy_(found)
                logging.info("step %d index refreshed, mrr %.4f", step, mrr)
            dist.broadcast(hard, src=0)
        at = step * args.global_batch % args.queries
        rows = order[torch.arange(at, at + args.global_batch) % args.queries]
        pick = torch.randint(0, 20, (args.global_batch, args.negatives), generator=shared)
        negative = hard[rows].gather(1, pick)
        rows, negative = rows.chunk(world)[rank], negative.chunk(world)[rank]
        cand = torch.cat([gold[rows][:, None], negative], 1)
        loss = F.cross_entropy(model(queries[rows], docs[cand]), torch.zeros(len(rows), dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 29:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            logging.info("step %d loss %.6f", step, mean.item() / world)
    if rank == 0:
        _, mrr = mine(model.module, docs, queries, gold, 20)
        logging.info("final mrr %.4f", mrr)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
