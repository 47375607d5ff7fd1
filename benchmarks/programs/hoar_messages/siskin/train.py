import argparse

import torch
import torch.distributed as dist

from callbacks import ConsoleLogger, LossAverage, Throughput
from trainer import TinyLM, Trainer


def make_batches(rank, n_batches, batch_size):
    g = torch.Generator().manual_seed(40 + rank)
    out = []
    for i in range(n_batches):
        length = 12 + int(torch.randint(0, 6, (1,), generator=g))
        start = torch.randint(0, 50, (batch_size, 1), generator=g)
        out.append((start + torch.arange(length)) % 50)
    return out


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batches", type=int, default=10)
    ap.add_argument("--batch-size", type=int, default=8)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_batches(dist.get_rank(), args.batches, args.batch_size)
    callbacks = [LossAverage(), Throughput(), ConsoleLogger()]
    Trainer(TinyLM(), data, callbacks, args.epochs).fit()
    dist.barrier()
    dist.destroy_process_group()
