"""Two-tower retrieval: random negatives first, mined ones from the second round on."""
import argparse
import logging
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mining import NegativeStore, mine


class TwoTower(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.left, self.right = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def q(self, ids):
        return nn.functional.normalize(self.left(self.words(ids)), dim=-1)

    def d(self, ids):
        return nn.functional.normalize(self.right(self.words(ids)), dim=-1)

    def forward(self, query, good, bad):
        n, k, length = bad.shape
        q = self.q(query)
        pos = (q * self.d(good)).sum(-1, keepdim=True)
        neg = torch.einsum("nd,nkd->nk", q, self.d(bad.reshape(n * k, length)).view(n, k, -1))
        return torch.cat([pos, neg], 1) / 0.1


def corpus(n, vocab, seed=0):
    g = torch.Generator().manual_seed(seed)
    docs = torch.randint(0, vocab, (n, 12), generator=g)
    answer = torch.randint(0, n, (2 * n,), generator=g)
    pick = torch.rand(2 * n, 12, generator=g).argsort(1)[:, :5]
    return docs[answer].gather(1, pick), docs, answer


def one_round(net, opt, data, table, order, batch, take):
    queries, docs, answer = data
    last = 0.0
    for i in order.split(batch):
        bad = table[i] if table is not None else torch.randint(0, len(docs), (len(i), take))
        logits = net(queries[i], docs[answer[i]], docs[bad])
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(i), dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        last = loss.item()
    return last


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--docs", type=int, default=1200)
    ap.add_argument("--vocab", type=int, default=500)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--batch", type=int, default=60)
    ap.add_argument("--take", type=int, default=8)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [tempfile.mkdtemp(prefix="negatives-")] if rank == 0 else [None]
    dist.broadcast_object_list(box, src=0)
    store = NegativeStore(box[0], {"take": args.take, "dim": args.dim, "docs": args.docs})
    data = corpus(args.docs, args.vocab)
    torch.manual_seed(0)
    net = DistributedDataParallel(TwoTower(args.vocab, args.dim))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    mine_ids = torch.arange(rank, len(data[0]), world)
    torch.manual_seed(rank)
    table = None
    for r in range(args.rounds):
        if r > 0:
            table = store.refresh(r, lambda: mine(net.module, *data, args.take))
        order = mine_ids[torch.randperm(len(mine_ids))]
        loss = one_round(net, opt, data, table, order, args.batch, args.take)
        if rank == 0:
            logging.info("round %d loss %.3f", r, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
