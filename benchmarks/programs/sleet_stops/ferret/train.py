"""Seismic event classifier fed from live stations; stops when a rank has run dry."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from feed import Feed, Source


def cnn():
    return nn.Sequential(
        nn.Conv1d(6, 24, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(24, 32, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(1),
        nn.Flatten(), nn.Linear(32, 4))


def everyone_has(item):
    ok = torch.tensor(0 if item is None else 1)
    dist.all_reduce(ok, op=dist.ReduceOp.MIN)
    return ok.item() == 1


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-steps", type=int, default=400)
    ap.add_argument("--stations", type=int, default=3)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--shortest", type=int, default=25)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"r{rank} %(name)s %(message)s")
    log = logging.getLogger("train")
    torch.manual_seed(0)
    net = DDP(cnn())
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    sources = [Source(10 * rank + k, a.shortest * (1 + k) + 15 * rank, a.batch) for k in range(a.stations)]
    feed = Feed(sources)
    step = 0
    while step < a.max_steps:
        item = feed.take()
        if not everyone_has(item):
            log.info("leaving at step %d, %s", step, "dry" if item is None else "others are dry")
            break
        x, y = item
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if rank == 0 and step % 20 == 0:
            log.info("step %d loss %.3f", step, loss.item())
    feed.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
