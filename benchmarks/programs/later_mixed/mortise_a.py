"""Three-rank training with a progress report every few tenths of a second."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("progress")


class EveryWallTime:
    """Calls `fn` when at least `seconds` have passed since the last call."""

    def __init__(self, seconds, fn):
        self.seconds, self.fn = seconds, fn
        self.last = time.monotonic()

    def __call__(self, *args):
        due = time.monotonic() - self.last >= self.seconds
        if not due:
            return
        self.fn(*args)
        self.last = time.monotonic()


class Corpus:
    """Synthetic token windows; rank 0 also checks the index file before the start."""

    def __init__(self, rank, vocab=40, length=12, size=16):
        self.gen = torch.Generator().manual_seed(70 + rank)
        self.vocab, self.length, self.size = vocab, length, size

    def verify(self):
        time.sleep(0.25)

    def batch(self):
        start = torch.randint(0, self.vocab, (self.size, 1), generator=self.gen)
        return (start + torch.arange(self.length + 1)) % self.vocab


class Model(nn.Module):
    def __init__(self, vocab=40, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])


def report(loss, step):
    parts = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, loss.detach().reshape(1))
    if dist.get_rank() == 0:
        values = torch.cat(parts)
        log.info("step %d loss %.4f, over the ranks %.4f to %.4f", step, values.mean(), values.min(), values.max())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--report-seconds", type=float, default=0.6)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    corpus = Corpus(rank)
    ddp = DDP(Model())
    opt = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    if rank == 0:
        corpus.verify()
    on_progress = EveryWallTime(args.report_seconds, report)

    for step in range(args.steps):
        ids = corpus.batch()
        logits = ddp(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.03)  # stands for the real compute
        on_progress(loss, step)
    dist.barrier()
    if rank == 0:
        log.info("finished %d steps", args.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
