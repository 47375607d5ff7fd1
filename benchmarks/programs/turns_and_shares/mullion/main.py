"""Tone classifier with sparse gradient exchange, trained in legs as on a preemptible queue."""
import argparse
import os
import tempfile

import torch.distributed as dist

from trainer import Job


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--legs", type=int, default=2, help="number of times the job is started")
    p.add_argument("--epochs-per-leg", type=int, default=2)
    p.add_argument("--share", type=float, default=0.03, help="part of each gradient that is sent")
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=0.04)
    p.add_argument("--seed", type=int, default=44)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "tones"))
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    for leg in range(args.legs):
        job = Job(args)
        if leg > 0:
            job.load()
        if job.rank == 0:
            print(f"leg {leg} starts at epoch {job.epoch}", flush=True)
        job.run(until=(leg + 1) * args.epochs_per_leg)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
