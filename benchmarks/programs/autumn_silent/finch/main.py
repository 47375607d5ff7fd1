"""Pre-training a small decoder with per-layer sharding."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import Decoder
from parallelize import apply_fsdp, build_param_groups

log = logging.getLogger("pretrain")


class CountingCorpus:
    """Arithmetic progressions modulo the vocabulary size, with noise tokens."""

    def __init__(self, vocab, seq_len, batch, seed):
        self.vocab, self.seq_len, self.batch = vocab, seq_len, batch
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            start = torch.randint(0, self.vocab, (self.batch, 1), generator=self.gen)
            stride = torch.randint(1, 6, (self.batch, 1), generator=self.gen)
            seq = (start + stride * torch.arange(self.seq_len + 1)) % self.vocab
            noise = torch.randint(0, self.vocab, seq.shape, generator=self.gen)
            seq = torch.where(torch.rand(seq.shape, generator=self.gen) < 0.05, noise, seq)
            yield seq[:, :-1], seq[:, 1:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--seq_len", type=int, default=32)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--embed_lr", type=float, default=3e-3)
    p.add_argument("--weight_decay", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    model = apply_fsdp(Decoder(), world)
    groups = build_param_groups(model, args.lr, args.embed_lr, args.weight_decay)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
    corpus = iter(CountingCorpus(64, args.seq_len, args.batch, seed=args.seed * 1000 + rank))

    t0 = time.time()
    for step in range(args.steps):
        tokens, targets = next(corpus)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        optimizer.step()
        scheduler.step()
        if step % 15 == 0 or step == args.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                log.info("step %3d loss %.4f (%.1fs)", step, mean.item() / world, time.time() - t0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
