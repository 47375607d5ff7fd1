"""Character model training in restartable segments, as run under a queue with a wall-clock limit."""
import argparse
import logging
import math
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import Checkpointer
from model import CharGRU, MarkovText

log = logging.getLogger("chargru")


def lr_at(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    return args.lr * 0.5 * (1 + math.cos(math.pi * step / args.total_steps))


def run_segment(args, ckpt, segment):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = CharGRU(args.vocab)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.99))
    start = ckpt.restore(model, optimizer)
    ddp = DDP(model)
    text = MarkovText(args.vocab, seed=args.seed)
    stop = min(args.total_steps, start + args.segment_steps)
    if rank == 0:
        log.info("segment %d: steps %d..%d", segment, start, stop)

    for step in range(start, stop):
        gen = torch.Generator().manual_seed(args.seed * 7919 + step * world + rank)
        ids, targets = text.batch(args.batch_size, args.length, gen)
        loss = F.cross_entropy(ddp(ids).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, args)
        optimizer.step()
        if step % 15 == 0 and rank == 0:
            log.info("step %3d loss %.4f lr %.2e", step, loss.item(), optimizer.param_groups[0]["lr"])

    ckpt.save(model, optimizer, stop)
    return stop


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"chargru-{os.environ.get('MASTER_PORT', '0')}"))
    p.add_argument("--vocab", type=int, default=24)
    p.add_argument("--length", type=int, default=24)
    p.add_argument("--batch_size", type=int, default=32)
    p.add_argument("--total_steps", type=int, default=120)
    p.add_argument("--segment_steps", type=int, default=50)
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=9)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        shutil.rmtree(args.out, ignore_errors=True)
        os.makedirs(args.out)
    dist.barrier()

    ckpt = Checkpointer(args.out)
    done, segment = 0, 0
    while done < args.total_steps:
        done = run_segment(args, ckpt, segment)
        segment += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
