"""Draft-model training: blocks are anchored inside each sample, samples may be too short for a block."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("draft")


class NoValidAnchorsError(ValueError):
    pass


class Draft(nn.Module):
    def __init__(self, vocab=40, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, blocks):
        return self.out(self.mix(self.emb(blocks))[0])


def anchored_blocks(samples, size):
    blocks = [s[i:i + size + 1] for s in samples for i in range(0, len(s) - size, size)]
    if not blocks:
        raise NoValidAnchorsError("every sample is shorter than a block")
    return torch.stack(blocks)


class Stream:
    def __init__(self, seed, n):
        self.g = torch.Generator().manual_seed(seed)
        self.n = n

    def __iter__(self):
        for _ in range(self.n):
            lens = torch.randint(4, 26, (2,), generator=self.g).tolist()
            yield [(torch.randint(0, 40, (1,), generator=self.g) + torch.arange(k)) % 40 for k in lens]


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.model = DDP(Draft())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.skipped = 0

    def compute_loss(self, samples):
        blocks = anchored_blocks(samples, self.args.block)
        logits = self.model(blocks[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), blocks[:, 1:].flatten())

    def epoch(self, epoch):
        for i, samples in enumerate(Stream(1000 * epoch + self.rank, self.args.batches)):
            valid = torch.tensor(int(any(len(s) > self.args.block for s in samples)))
            dist.all_reduce(valid, op=dist.ReduceOp.MIN)
            if not valid.item():
                log.debug("batch %d skipped", i)
                self.skipped += 1
                continue
            loss = self.compute_loss(samples)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        dist.barrier()
        return loss.item()

    def fit(self):
        for epoch in range(self.args.epochs):
            loss = self.epoch(epoch)
            if self.rank == 0:
                print(f"epoch {epoch} loss {loss:.3f} skipped {self.skipped}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batches", type=int, default=30)
    ap.add_argument("--block", type=int, default=8)
    dist.init_process_group("gloo")
    Trainer(ap.parse_args()).fit()
    dist.destroy_process_group()
