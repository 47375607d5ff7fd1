"""Hybrid-sharded pretraining of a small decoder on synthetic n-gram text.

    torchrun --nproc_per_node 4 train.py --replicas 2
"""
import argparse
import logging
import math
import os
import random
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from model import Decoder

log = logging.getLogger("pretrain")


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--replicas", type=int, default=2)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--batch-size", type=int, default=8, help="sequences per rank")
    p.add_argument("--seq-len", type=int, default=48)
    p.add_argument("--vocab", type=int, default=512)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=6198)
    p.add_argument("--out", default=None)
    return p.parse_args()


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class NGramStream:
    """Endless stream of sequences from a sparse bigram table; each data rank has its own substream."""

    def __init__(self, vocab, seq_len, batch_size, data_rank, seed):
        table = torch.Generator().manual_seed(seed)
        self.successors = torch.randint(0, vocab, (vocab, 4), generator=table)
        self.gen = torch.Generator().manual_seed(seed + 1000 * (data_rank + 1))
        self.vocab, self.seq_len, self.batch_size = vocab, seq_len, batch_size

    def next_batch(self):
        ids = torch.empty(self.batch_size, self.seq_len + 1, dtype=torch.long)
        ids[:, 0] = torch.randint(0, self.vocab, (self.batch_size,), generator=self.gen)
        picks = torch.randint(0, 4, (self.batch_size, self.seq_len), generator=self.gen)
        for t in range(self.seq_len):
            ids[:, t + 1] = self.successors[ids[:, t], picks[:, t]]
        return ids[:, :-1], ids[:, 1:]


def build_model(args, mesh):
    model = Decoder(args.vocab, max_len=args.seq_len)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def lr_at(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return 0.1 * args.lr + 0.45 * args.lr * (1 + math.cos(math.pi * progress))


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s %(name)s | %(message)s")
    out = args.out or tempfile.mkdtemp(prefix="pretrain_")
    mesh = init_device_mesh("cpu", (args.replicas, world // args.replicas),
                            mesh_dim_names=("dp_replicate", "dp_shard"))

    # every rank gets its own stream of random numbers (dropout, data)
    seed_all(args.seed + rank)
    model = build_model(args, mesh)

    optim = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    stream = NGramStream(args.vocab, args.seq_len, args.batch_size, rank, args.seed)

    tick = time.time()
    for step in range(args.steps):
        for group in optim.param_groups:
            group["lr"] = lr_at(step, args)
        ids, labels = stream.next_batch()
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad(set_to_none=True)

        if step % 10 == 0 or step == args.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            log.info("step %d loss %.4f grad_norm %.3f lr %.2e (%.2fs)", step, mean.item() / world,
                     norm.full_tensor().item(), optim.param_groups[0]["lr"], time.time() - tick)
            tick = time.time()

    # the first replica holds a complete set of shards
    if mesh.get_local_rank("dp_replicate") == 0:
        shard = {k: v.to_local().clone() for k, v in model.state_dict().items()}
        torch.save(shard, os.path.join(out, f"shard_{mesh.get_local_rank('dp_shard')}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
