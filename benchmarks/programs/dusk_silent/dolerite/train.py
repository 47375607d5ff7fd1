"""Click-through-rate model, fp16 autocast, optimizer state sharded over the ranks.

    torchrun --nproc_per_node 2 train.py
"""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from recsys import Interactions, TwoTowerRanker
from sharded import FlatShard

log = logging.getLogger("ctr")


def build_scaler(args):
    return torch.amp.GradScaler("cpu", init_scale=2.0 ** 16, growth_interval=args.growth_interval)


class Engine:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.shard = FlatShard(model)
        self.optimizer = torch.optim.AdamW([self.shard.master], lr=args.lr, weight_decay=1e-4)
        self.scaler = build_scaler(args)

    def train_step(self, user, item, context, label):
        self.shard.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.model(user, item, context)
        loss = F.binary_cross_entropy_with_logits(logits.float(), label)
        self.scaler.scale(loss).backward()
        self.shard.reduce_gradients()
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.shard.publish()
        return loss.detach()


@torch.no_grad()
def evaluate(model, stream, batches):
    total = torch.zeros(())
    for _ in range(batches):
        u, i, c, y = stream.next()
        total += F.binary_cross_entropy_with_logits(model(u, i, c), y)
    dist.all_reduce(total)
    return (total / (batches * dist.get_world_size())).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=170)
    p.add_argument("--batch-size", type=int, default=384)
    p.add_argument("--users", type=int, default=2000)
    p.add_argument("--items", type=int, default=1000)
    p.add_argument("--contexts", type=int, default=24)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--growth-interval", type=int, default=5)
    p.add_argument("--eval-every", type=int, default=85)
    p.add_argument("--seed", type=int, default=64)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(args.seed)
    model = TwoTowerRanker(args.users, args.items, args.contexts)
    engine = Engine(model, args)
    stream = Interactions(args.users, args.items, args.contexts, args.batch_size, rank, args.seed)
    held_out = Interactions(args.users, args.items, args.contexts, args.batch_size, 100 + rank, args.seed)

    tick = time.time()
    for step in range(1, args.steps + 1):
        loss = engine.train_step(*stream.next())
        if step % 20 == 0:
            dist.all_reduce(loss)
            log.info("step %d loss %.4f scale %.0f %.1fs", step, loss.item() / dist.get_world_size(),
                     engine.scaler.get_scale(), time.time() - tick)
            tick = time.time()
        if step % args.eval_every == 0:
            log.info("step %d held out %.4f", step, evaluate(model, held_out, 4))

    if rank == 0:
        torch.save(model.state_dict(), os.path.join(args.out or tempfile.mkdtemp(), "ranker.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
