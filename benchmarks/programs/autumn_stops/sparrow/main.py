import argparse
import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from corpus import DialogueCorpus
from drafter import BlockDrafter, NoAnchorsError

log = logging.getLogger("draft")


class DraftTrainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = DDP(BlockDrafter(args.vocab, args.dim, args.block))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.corpus = DialogueCorpus(self.rank, self.world_size, args.vocab)
        self.skipped = 0

    def train_epoch(self):
        total, count = 0.0, 0
        for tokens, lengths in self.corpus.batches(self.args.batch_size):
            try:
                loss = self.model(tokens, lengths)
            except NoAnchorsError as err:
                self.skipped += 1
                log.debug("skipping batch: %s", err)
                continue
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            total += loss.item()
            count += 1
        return total / max(count, 1), count

    def fit(self):
        for epoch in range(self.args.epochs):
            loss, count = self.train_epoch()
            rows = [None] * self.world_size
            dist.all_gather_object(rows, {"rank": self.rank, "loss": loss, "batches": count, "skipped": self.skipped})
            if self.rank == 0:
                mean = sum(r["loss"] * r["batches"] for r in rows) / sum(r["batches"] for r in rows)
                log.info("epoch %d loss %.4f batches %s", epoch, mean, [r["batches"] for r in rows])


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--vocab", type=int, default=400)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--block", type=int, default=8)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    trainer = DraftTrainer(args)
    trainer.fit()
    if trainer.rank == 0:
        log.info("finished")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
