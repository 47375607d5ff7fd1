import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from meters import AverageMeter, LocalMeter

log = logging.getLogger("train")


def setup_logging(rank):
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"%(asctime)s [{rank}] %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO if rank == 0 else logging.WARNING)


class Engine:
    def __init__(self, model, lr):
        self.model = DDP(model)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.step_time = LocalMeter("sec/step")
        self.loss = AverageMeter("loss")

    def train_step(self, x, y):
        start = time.perf_counter()
        loss = nn.functional.smooth_l1_loss(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.loss.update(loss.item(), len(x))
        self.step_time.update(time.perf_counter() - start)


def stream(rank, seed=0):
    g = torch.Generator().manual_seed(seed + rank)
    while True:
        x = torch.randn(48, 6, generator=g)
        yield x, torch.sin(x).sum(1, keepdim=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--summary-every", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    setup_logging(rank)
    torch.manual_seed(0)
    engine = Engine(nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 1)), lr=0.02)
    batches = stream(rank)
    for step in range(1, args.steps + 1):
        engine.train_step(*next(batches))
        if step % args.log_every == 0:
            log.info("step %d %s", step, engine.step_time)
        if step % args.summary_every == 0:
            log.info("step %d %s over all ranks", step, engine.loss)
            engine.loss.reset()
    dist.barrier()
    log.info("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
