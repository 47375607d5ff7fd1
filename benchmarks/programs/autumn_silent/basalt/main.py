"""Supervised fine-tuning with gradient accumulation and token-level loss averaging."""
import argparse
import contextlib
import itertools
import logging
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from data import IGNORE, InstructionPairs, collate
from model import CausalLM

logger = logging.getLogger("sft")


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = DDP(CausalLM(args.vocab))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._lr_lambda)
        dataset = InstructionPairs(args.samples, args.vocab, seed=args.seed)
        self.sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed, drop_last=True)
        self.loader = DataLoader(
            dataset, batch_size=args.batch_size, sampler=self.sampler, collate_fn=collate, drop_last=True
        )

    def _lr_lambda(self, step):
        if step < self.args.warmup:
            return (step + 1) / self.args.warmup
        progress = (step - self.args.warmup) / max(1, self.args.max_steps - self.args.warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))

    def get_batch_samples(self, iterator):
        batches = list(itertools.islice(iterator, self.args.grad_accum))
        if len(batches) < self.args.grad_accum:
            return None, None
        num_items = sum((b["labels"][:, 1:] != IGNORE).sum() for b in batches)
        if self.args.average_tokens_across_devices:
            dist.all_reduce(num_items)
        return batches, num_items

    def compute_loss(self, batch, num_items):
        logits = self.model(batch["input_ids"])[:, :-1]
        labels = batch["labels"][:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
        return loss / num_items

    def training_step(self, batches, num_items):
        total = torch.zeros(())
        for i, batch in enumerate(batches):
            last = i == len(batches) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = self.compute_loss(batch, num_items)
                loss.backward()
            total += loss.detach()
        return total

    def train(self):
        step, epoch = 0, 0
        while step < self.args.max_steps:
            self.sampler.set_epoch(epoch)
            iterator = iter(self.loader)
            while step < self.args.max_steps:
                batches, num_items = self.get_batch_samples(iterator)
                if batches is None:
                    break
                self.optimizer.zero_grad(set_to_none=True)
                loss = self.training_step(batches, num_items)
                norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                self.optimizer.step()
                self.scheduler.step()
                dist.all_reduce(loss)
                if step % self.args.log_every == 0 and self.rank == 0:
                    logger.info("step %3d loss %.4f grad_norm %.3f tokens %d", step, loss, norm, num_items)
                step += 1
            epoch += 1
        return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=40)
    p.add_argument("--samples", type=int, default=3000)
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--grad_accum", type=int, default=3)
    p.add_argument("--max_steps", type=int, default=60)
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--lr", type=float, default=0.4)
    p.add_argument("--max_grad_norm", type=float, default=5.0)
    p.add_argument("--average_tokens_across_devices", type=int, default=1)
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--log_every", type=int, default=10)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s")
    dist.init_process_group("gloo")
    final = Trainer(args).train()
    if dist.get_rank() == 0:
        logger.info("done, final loss %.4f", final)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
