"""Single-epoch GPT pretraining with batch size ramp-up.

torchrun --nproc_per_node 2 main.py --rampup 8 8 30 --target-batch 32
"""
import argparse
import logging
import math
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from data import GlobalBatchSize, TokenLoader, build_bin
from model import GPT


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--train-iters", type=int, default=120)
    p.add_argument("--rampup", type=int, nargs=3, default=[8, 8, 30], metavar=("START", "INC", "EVERY"))
    p.add_argument("--target-batch", type=int, default=32)
    p.add_argument("--micro-batch", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=48)
    p.add_argument("--vocab", type=int, default=128)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=1337)
    p.add_argument("--data-dir", default=None)
    return p.parse_args()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    log = logging.getLogger("train")

    gbs = GlobalBatchSize(*args.rampup, args.target_batch)
    num_samples = gbs.total(args.train_iters)
    box = [args.data_dir or (tempfile.mkdtemp(prefix="chisel-") if rank == 0 else None)]
    dist.broadcast_object_list(box, src=0)
    path = os.path.join(box[0], "train.bin")
    if rank == 0 and not os.path.exists(path):
        build_bin(path, num_samples, args.seq_len, args.vocab, args.seed)
    dist.barrier()
    loader = TokenLoader(path, num_samples, args.seq_len, gbs, rank, world, args.seed)
    log.info("%d samples, batch %d -> %d", num_samples, gbs(0), gbs(args.train_iters - 1))

    torch.manual_seed(args.seed)
    model = DDP(GPT(args.vocab, args.seq_len))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    t0 = time.time()
    for step in range(args.train_iters):
        for g in opt.param_groups:
            frac = step / args.train_iters
            g["lr"] = args.lr * min((step + 1) / 10, 0.1 + 0.45 * (1 + math.cos(math.pi * frac)))
        x, y = loader.batch(step)
        chunks = list(zip(x.split(args.micro_batch), y.split(args.micro_batch)))
        total = 0.0
        for i, (cx, cy) in enumerate(chunks):
            model.require_backward_grad_sync = i == len(chunks) - 1
            loss = model(cx, cy) / len(chunks)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 10 == 0:
            log.info("iter %d batch %d consumed %d/%d loss %.4f (%.1fs)", step, len(x) * world,
                     loader.consumed, num_samples, total, time.time() - t0)
    dist.barrier()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "consumed": loader.consumed},
                   os.path.join(box[0], "ckpt.pt"))
        log.info("trained on %d samples in %.1fs", loader.consumed, time.time() - t0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
