"""Skip-gram embeddings; the vocabulary is grown in two rounds."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel as DDP

from vocab import Tokenizer, VocabularyExchange, corpus

log = logging.getLogger("skipgram")


class SkipGram(nn.Module):
    def __init__(self, size, dim):
        super().__init__()
        self.emb = nn.Embedding(size, dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, size))

    def forward(self, centre):
        return self.out(self.emb(centre))


def pairs(words, tok, rank, world):
    ids = [i for w in words[rank::world] for i in tok.encode(w)]
    ids = torch.tensor(ids)
    return ids[:-1], ids[1:]


def train_round(tok, words, args, rank, world, name):
    torch.manual_seed(1)
    model = DDP(SkipGram(len(tok.ids), args.dim))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    centre, near = pairs(words, tok, rank, world)
    g = torch.Generator().manual_seed(rank)
    start = time.time()
    for step in range(1, args.steps + 1):
        pick = torch.randint(0, len(centre), (args.batch,), generator=g)
        loss = nn.functional.cross_entropy(model(centre[pick]), near[pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 25 == 0 and rank == 0:
            log.info("%s step %3d  loss %.4f  %.1fs", name, step, loss.item(), time.time() - start)
    return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--words", type=int, default=60_000)
    p.add_argument("--rounds", type=int, nargs="+", default=[8, 170])
    p.add_argument("--steps", type=int, default=75)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--patience", type=float, default=2.0, help="seconds to wait for the vocabulary")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")
    exchange = VocabularyExchange(_get_default_store(), args.patience)
    words = corpus(args.words, seed=5)

    for merges in args.rounds:
        learnt = exchange.build(words, merges)
        tok = Tokenizer(learnt)
        log.info("vocabulary of %d symbols", len(tok.ids))
        train_round(tok, words, args, rank, world, f"merges={merges}")

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
