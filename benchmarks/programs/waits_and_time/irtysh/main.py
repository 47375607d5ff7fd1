import argparse
import logging
import random

import torch
import torch.distributed as dist
from torch import nn

from evaluate import BeamEvaluator
from mapping import Seq2Seq, digit_words

log = logging.getLogger("irtysh")


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.pairs, self.src_vocab, self.dst_vocab = digit_words(args.pairs, args.seed)
        held = args.pairs // 10
        self.held, self.train = self.pairs[:held], self.pairs[held:]
        self.model = Seq2Seq(len(self.src_vocab), len(self.dst_vocab), args.dim)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.evaluator = BeamEvaluator(self.dst_vocab, args.beam) if self.rank == 0 else None
        self.best = -1.0

    def batches(self, epoch):
        order = list(range(len(self.train)))
        random.Random(self.args.seed + epoch).shuffle(order)
        whole = len(order) // (self.args.batch * self.world)
        for b in range(whole):
            at = (b * self.world + self.rank) * self.args.batch
            yield [self.train[i] for i in order[at:at + self.args.batch]]

    def average(self):
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world

    def train_epoch(self, epoch):
        self.model.train()
        total, n = 0.0, 0
        for rows in self.batches(epoch):
            src = torch.tensor([r[0] for r in rows])
            dst = torch.tensor([r[1] for r in rows])
            loss = self.model.loss(src, dst)
            self.opt.zero_grad()
            loss.backward()
            self.average()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            total, n = total + loss.item(), n + 1
        return total / n

    def score(self):
        verdict = torch.zeros(2)
        if self.rank == 0:
            self.model.eval()
            value, seconds = self.evaluator.exact_match(self.model, self.held[: self.args.eval_rows])
            verdict = torch.tensor([value, seconds])
        dist.broadcast(verdict, src=0)
        return verdict.tolist()

    def fit(self):
        for epoch in range(self.args.epochs):
            loss = self.train_epoch(epoch)
            if self.rank == 0:
                log.info("epoch %d loss %.3f", epoch, loss)
            if epoch % self.args.eval_every == self.args.eval_every - 1:
                match, seconds = self.score()
                self.best = max(self.best, match)
                if self.rank == 0:
                    log.info("epoch %d exact match %.3f (%.1fs)", epoch, match, seconds)
                if match >= self.args.good_enough:
                    break
        log.info("rank %d best %.3f checksum %.8f", self.rank, self.best,
                 sum(float(p.detach().double().sum()) for p in self.model.parameters()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pairs", type=int, default=1500)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--batch", type=int, default=30)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--eval-every", type=int, default=3)
    ap.add_argument("--eval-rows", type=int, default=150)
    ap.add_argument("--beam", type=int, default=20)
    ap.add_argument("--good-enough", type=float, default=0.995)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=15)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    Trainer(args).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
