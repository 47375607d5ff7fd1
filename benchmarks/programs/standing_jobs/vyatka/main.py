import argparse
import logging
from dataclasses import dataclass

import torch.distributed as dist

import registry
from trainer import Trainer


@dataclass
class Config:
    n: int = 1200
    batch: int = 24
    epochs: int = 4
    lr: float = 6e-3
    seed: int = 77
    hooks: tuple = ("lr_log", "ema", "grad_spread")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--hooks", default="lr_log,ema,grad_spread")
    ap.add_argument("--extras", default="extras")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, hooks=tuple(args.hooks.split(",")))
    registry.discover(args.extras)
    hooks = registry.make(cfg.hooks)
    Trainer(cfg, hooks).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
