"""Training with validation and progress exchange off the main thread."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from background import BackgroundValidator, Pulse

log = logging.getLogger("train")


def dataset(n, dim, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=g)
    w = torch.randn(dim, 12, generator=torch.Generator().manual_seed(4))
    return x, (x @ w).argmax(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--hidden", type=int, default=384)
    p.add_argument("--val-every", type=int, default=60)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    val_group, pulse_group = dist.new_group(), dist.new_group()

    val_x, val_y = dataset(40_000, args.dim, seed=2)
    validator = BackgroundValidator(val_x[rank::world], val_y[rank::world], val_group)
    pulse = Pulse(pulse_group)
    validator.start()
    pulse.start()

    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(args.dim, args.hidden), nn.GELU(), nn.Linear(args.hidden, args.hidden), nn.GELU(), nn.Linear(args.hidden, 12)))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    x, y = dataset(16_000, args.dim, seed=1)
    g = torch.Generator().manual_seed(70 + rank)
    start = time.time()

    def report():
        for step, loss, acc in validator.poll():
            log.info("validation of step %3d: loss %.4f  accuracy %.3f  (now %.1fs)", step, loss, acc, time.time() - start)

    for step in range(1, args.steps + 1):
        i = torch.randint(0, len(x), (args.batch,), generator=g)
        loss = nn.functional.cross_entropy(model(x[i]), y[i])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        pulse.step = step
        if step % args.val_every == 0:
            validator.submit(step, model.module)
        report()

    log.info("training through after %.1fs, waiting for the validator", time.time() - start)
    validator.close()
    report()
    pulse.close()
    log.info("widest gap between the workers: %d steps", pulse.widest)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
