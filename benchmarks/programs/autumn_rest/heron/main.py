import argparse
import logging
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from sharded import ShardedAdam
from store import CheckpointStore

logger = logging.getLogger(__name__)


class TagModel(nn.Module):
    def __init__(self, vocab=800, dim=128, tags=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.proj = nn.Sequential(nn.LayerNorm(2 * dim), nn.Linear(2 * dim, dim), nn.GELU(), nn.Linear(dim, tags))

    def forward(self, tokens):
        h, _ = self.rnn(self.emb(tokens))
        return self.proj(h)


class Corpus:
    def __init__(self, vocab=800, tags=24, n=3000, length=24):
        gen = torch.Generator().manual_seed(17)
        table = torch.randint(0, tags, (vocab,), generator=gen)
        self.tokens = (torch.rand(n, length, generator=gen) ** 2 * vocab).long()
        prev = torch.roll(self.tokens, 1, dims=1)
        self.labels = (table[self.tokens] + table[prev]) % tags

    def batches(self, rank, world, size, start, stop):
        n = len(self.tokens)
        for step in range(start, stop):
            gen = torch.Generator().manual_seed(step)
            idx = torch.randperm(n, generator=gen)[: size * world][rank::world]
            yield step, self.tokens[idx], self.labels[idx]


def leg(args, corpus, store, steps):
    torch.manual_seed(args.seed)
    model = TagModel()
    optimizer = ShardedAdam(model.parameters(), lr=args.lr)
    start = store.restore(model, optimizer)
    rank, world = dist.get_rank(), dist.get_world_size()
    logger.info("leg starts at step %d", start)
    for step, tokens, labels in corpus.batches(rank, world, args.batch, start, start + steps):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 15 == 0:
            logger.info("step %d loss %.4f", step + 1, loss.item())
        if (step + 1) % args.save_every == 0:
            store.save(step + 1, model, optimizer)
    return start + steps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--leg-steps", type=int, default=50)
    ap.add_argument("--legs", type=int, default=3)
    ap.add_argument("--save-every", type=int, default=25)
    args = ap.parse_args()

    dist.init_process_group(backend="gloo")
    level = logging.INFO if dist.get_rank() == 0 else logging.WARNING
    logging.basicConfig(level=level, format="[%(asctime)s] %(message)s")
    root = [tempfile.mkdtemp(prefix="tagger-")] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(root, src=0)
    corpus, store = Corpus(), CheckpointStore(root[0])
    for _ in range(args.legs):
        done = leg(args, corpus, store, args.leg_steps)
    logger.info("trained %d steps", done)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
