"""DPO with one pair per micro-batch and gradient accumulation under DDP."""
import argparse
import contextlib
import copy
import logging
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from dpo import TinyDecoder, dpo_loss
from prefs import LongestFirstSampler, PreferenceSet


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pairs", type=int, default=240)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--global-batch", type=int, default=12)
    ap.add_argument("--max-len", type=int, default=384)
    ap.add_argument("--vocab", type=int, default=256)
    ap.add_argument("--dim", type=int, default=96)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--beta", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    model = TinyDecoder(args.vocab, args.dim, 4, args.layers, args.max_len)
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    policy = DDP(model)
    opt = torch.optim.AdamW(policy.parameters(), lr=args.lr, weight_decay=0.0)
    data = PreferenceSet(args.pairs, args.vocab, args.max_len, seed=2)
    sampler = LongestFirstSampler(data.lengths, args.global_batch, rank, world)

    step, t0 = 0, time.time()
    for epoch in range(args.epochs):
        for ids in sampler.batches(epoch):
            stats = torch.zeros(3)
            for j, i in enumerate(ids):
                good, bad, prompt = data[i]
                last = j == len(ids) - 1
                with contextlib.nullcontext() if last else policy.no_sync():
                    loss, right = dpo_loss(policy, reference, good, bad, prompt, args.beta)
                    (loss / len(ids)).backward()
                stats += torch.tensor([loss.item(), right.item(), 1.0])
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            step += 1
            if step % 5 == 0:
                dist.all_reduce(stats)
                logging.info("epoch %d step %d loss %.4f acc %.2f %.2fs/step", epoch, step,
                             stats[0] / stats[2], stats[1] / stats[2], (time.time() - t0) / step)
    dist.barrier()
    logging.info("%d steps in %.1fs", step, time.time() - t0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
