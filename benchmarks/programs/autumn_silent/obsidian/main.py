"""Low-communication language-model training: many local AdamW steps, one outer step."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from outer import OuterOptimizer

log = logging.getLogger("local-updates")


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=64, context=6):
        super().__init__()
        self.context = context
        self.embed = nn.Embedding(vocab, dim)
        self.net = nn.Sequential(nn.Linear(context * dim, 192), nn.GELU(), nn.LayerNorm(192), nn.Linear(192, vocab))

    def forward(self, ids):
        windows = self.embed(ids).unfold(1, self.context, 1).transpose(2, 3)
        return self.net(windows.flatten(2))


class Corpus:
    """Order-two chains; each worker reads its own stream of one language."""

    def __init__(self, vocab, seed, worker):
        gen = torch.Generator().manual_seed(seed)
        self.table = torch.softmax(3 * torch.randn(vocab * vocab, vocab, generator=gen), -1)
        self.vocab = vocab
        self.gen = torch.Generator().manual_seed(seed * 1009 + worker)

    def batch(self, n, length):
        ids = torch.randint(0, self.vocab, (n, 2), generator=self.gen)
        while ids.size(1) < length:
            probs = self.table[ids[:, -2] * self.vocab + ids[:, -1]]
            ids = torch.cat([ids, torch.multinomial(probs, 1, generator=self.gen)], 1)
        return ids


def lm_loss(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, model.context:].flatten())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--outer_steps", type=int, default=14)
    p.add_argument("--inner_steps", type=int, default=12)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--length", type=int, default=24)
    p.add_argument("--vocab", type=int, default=16)
    p.add_argument("--inner_lr", type=float, default=2e-3)
    p.add_argument("--outer_lr", type=float, default=0.7)
    p.add_argument("--seed", type=int, default=44)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed + rank)
    model = TinyLM(args.vocab)
    outer = OuterOptimizer(model, lr=args.outer_lr)
    inner = torch.optim.AdamW(model.parameters(), lr=args.inner_lr, weight_decay=0.01)
    corpus = Corpus(args.vocab, args.seed, rank)
    held_out = Corpus(args.vocab, args.seed, 10 ** 6).batch(64, args.length)

    for t in range(args.outer_steps):
        for _ in range(args.inner_steps):
            loss = lm_loss(model, corpus.batch(args.batch, args.length))
            inner.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
        drift = outer.step()
        with torch.no_grad():
            val = lm_loss(model, held_out).item()
        if rank == 0:
            log.info("outer %2d local loss %.4f drift %.3f held-out %.4f", t, loss.item(), drift, val)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
