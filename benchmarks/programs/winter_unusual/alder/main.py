"""Low-communication language-model pre-training over slow links."""
import argparse
import logging
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from data import ShardWindows, build_corpus
from diloco import DiLoCo

log = logging.getLogger("alder")


class TinyLM(nn.Module):
    def __init__(self, vocab, dim, hidden):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.head(self.norm(h))


@torch.no_grad()
def evaluate(model, tokens, block, rank, world):
    model.eval()
    n = (len(tokens) - 1) // block
    x = tokens[: n * block].view(n, block)[rank::world]
    y = tokens[1 : n * block + 1].view(n, block)[rank::world]
    acc = torch.zeros(2)
    for xb, yb in zip(x.split(64), y.split(64)):
        logits = model(xb)
        acc[0] += F.cross_entropy(logits.flatten(0, 1), yb.flatten(), reduction="sum")
        acc[1] += yb.numel()
    dist.all_reduce(acc)
    model.train()
    return (acc[0] / acc[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=10)
    ap.add_argument("--inner-steps", type=int, default=25)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--block", type=int, default=32)
    ap.add_argument("--vocab", type=int, default=48)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    corpus = build_corpus(160_000, args.vocab)
    train, held = corpus[:144_000], corpus[144_000:]
    shard = train.chunk(world)[rank]
    torch.manual_seed(0)
    model = TinyLM(args.vocab, 48, 96)
    diloco = DiLoCo(model, args.inner_steps)
    inner = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    total = args.rounds * args.inner_steps
    sched = torch.optim.lr_scheduler.LambdaLR(
        inner, lambda s: min(1.0, (s + 1) / 20) * 0.5 * (1 + math.cos(math.pi * min(1.0, s / total))))
    stream = iter(ShardWindows(shard, args.block, args.batch, seed=1000 + rank))

    for step in range(total):
        x, y = next(stream)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        inner.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        inner.step()
        sched.step()
        if diloco.maybe_sync(step):
            val = evaluate(model, held, args.block, rank, world)
            log.info("round %d local loss %.4f held-out %.4f", diloco.rounds, loss.item(), val)

    out = args.out or os.path.join(tempfile.gettempdir(), f"alder-{os.environ.get('MASTER_PORT', '0')}")
    os.makedirs(out, exist_ok=True)
    torch.save({"inner": inner.state_dict(), "sched": sched.state_dict()}, os.path.join(out, f"worker{rank}.pt"))
    if rank == 0:
        torch.save({"model": model.state_dict(), **diloco.state_dict()}, os.path.join(out, "global.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
