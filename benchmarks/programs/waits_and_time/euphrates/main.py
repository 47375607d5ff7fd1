import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn

from corpus import Corpus, LengthBuckets

log = logging.getLogger("euphrates")


class Speller(nn.Module):
    def __init__(self, vocab, dim, layers):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, layers, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids[:, :-1]))
        logits = self.out(h)
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0, reduction="sum")


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = Speller(args.vocab, args.dim, args.layers)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: min(1.0, (s + 1) / 10))
        corpus = Corpus(args.docs, args.vocab, args.seed)
        self.loader = LengthBuckets(corpus, args.batch, self.rank, self.world, args.seed)

    def sync(self, loss_sum, tokens):
        grads = [p.grad for p in self.model.parameters()]
        flat = torch.cat([g.reshape(-1) for g in grads] + [torch.tensor([loss_sum, float(tokens)])])
        dist.all_reduce(flat)
        at = 0
        for g in grads:
            g.copy_(flat[at:at + g.numel()].view_as(g) / flat[-1])
            at += g.numel()
        return (flat[-2] / flat[-1]).item()

    def step(self, ids):
        loss = self.model(ids)
        self.opt.zero_grad()
        loss.backward()
        mean = self.sync(loss.item(), int((ids[:, 1:] != 0).sum()))
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        return mean

    def fit(self):
        n = 0
        for epoch in range(self.args.epochs):
            self.loader.set_epoch(epoch)
            began = time.perf_counter()
            for ids in self.loader:
                loss = self.step(ids)
                n += 1
                if self.rank == 0 and n % self.args.log_every == 0:
                    log.info("step %d loss %.3f", n, loss)
            if self.rank == 0:
                log.info("epoch %d took %.1fs", epoch, time.perf_counter() - began)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=960)
    ap.add_argument("--vocab", type=int, default=60)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=13)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"[%(relativeCreated)d ms] [{dist.get_rank()}] %(message)s")
    Trainer(args).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
