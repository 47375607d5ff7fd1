import argparse
import logging
import sys

import torch
import torch.distributed as dist

from curriculum import Curriculum
from pages import PageSet
from worker import Worker

log = logging.getLogger("jordan")


def setup_logging(rank):
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(f"%(name)s:{rank} %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)


def run(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    pages = PageSet(args.pages, args.sites, args.seed).of_sites(rank, world)
    plan = Curriculum(args.start_quality, args.quality_step)
    worker = Worker(args, rank, world)
    for phase in range(args.phases):
        chosen = plan.select(pages, phase)
        if not chosen:
            log.info("phase %d: no pages left above the bar, finished", phase)
            return worker.summary()
        loss = worker.train(chosen, phase)
        log.info("phase %d: %d pages, loss %.4f", phase, len(chosen), loss)
    return worker.summary()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pages", type=int, default=900)
    ap.add_argument("--sites", type=int, default=9)
    ap.add_argument("--phases", type=int, default=5)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--start-quality", type=float, default=0.2)
    ap.add_argument("--quality-step", type=float, default=0.12)
    ap.add_argument("--seed", type=int, default=19)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    setup_logging(dist.get_rank())
    summary = run(args)
    log.info("summary %s", summary)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
