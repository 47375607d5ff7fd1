"""Topic classifier over articles; each process reads its own part of the collection."""
import argparse
import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from words import TOPICS, WordTable, articles, count_words, merge_counts


class TopicNet(nn.Module):
    def __init__(self, vocab, width, dropout):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, width, mode="mean", padding_idx=0)
        self.drop = nn.Dropout(dropout)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, len(TOPICS))

    def forward(self, ids):
        return self.out(torch.relu(self.hidden(self.drop(self.bag(ids)))))


def as_tensors(rows, table):
    ids = torch.tensor([table.encode(text) for text, _ in rows])
    return ids, torch.tensor([topic for _, topic in rows])


def share(rows, rank, world):
    """Every world-th article, cut so that all parts are equally long."""
    return rows[rank:len(rows) // world * world:world]


@torch.no_grad()
def accuracy(net, ids, topics):
    net.eval()
    hits = torch.tensor([(net(ids).argmax(1) == topics).sum().item(), len(topics)], dtype=torch.float)
    net.train()
    dist.all_reduce(hits)
    return (hits[0] / hits[1]).item()


def main(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    train_rows = share(articles(args.articles, seed=100), rank, world)
    valid_rows = share(articles(args.articles // 4, seed=200), rank, world)

    parts = [None] * world
    dist.all_gather_object(parts, count_words(train_rows))
    counts = merge_counts(parts)
    table = WordTable.from_counts(counts, args.vocab)
    ids, topics = as_tensors(train_rows, table)
    held_ids, held_topics = as_tensors(valid_rows, table)

    torch.manual_seed(args.seed)
    net = TopicNet(args.vocab, args.width, args.dropout)
    ddp = DistributedDataParallel(net)
    opt = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    torch.manual_seed(args.seed + 1 + rank)
    order = torch.Generator().manual_seed(args.seed + 1 + rank)

    best = 0.0
    for epoch in range(args.epochs):
        total, turns = torch.zeros(1), 0
        whole = len(ids) // args.batch * args.batch
        for pick in torch.randperm(len(ids), generator=order)[:whole].split(args.batch):
            loss = F.cross_entropy(ddp(ids[pick]), topics[pick])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
            turns += 1
        dist.all_reduce(total)
        score = accuracy(net, held_ids, held_topics)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / turns / world:.4f} accuracy {score:.3f} "
                  f"coverage {table.coverage(valid_rows):.3f}", flush=True)
        if score > best:
            best = score
            if rank == 0:
                out = Path(args.out)
                out.mkdir(parents=True, exist_ok=True)
                torch.save(net.state_dict(), out / "topics.pt")
                (out / "words.json").write_text(json.dumps(table.words))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--articles", type=int, default=2048)
    p.add_argument("--vocab", type=int, default=400)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--dropout", type=float, default=0.1)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--lr", type=float, default=5e-3)
    p.add_argument("--seed", type=int, default=40)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "topics_b"))
    main(p.parse_args())
