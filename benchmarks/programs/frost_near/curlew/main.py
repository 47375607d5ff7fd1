import argparse
import logging
import os
import tempfile

import torch.distributed as dist

from trainer import Trainer


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--ema-decay", type=float, default=0.999)
    p.add_argument("--seed", type=int, default=6)
    p.add_argument("--save-every", type=int, default=4)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "surrogate_runs"))
    p.add_argument("--resume", default="")
    cfg = p.parse_args()
    os.makedirs(cfg.out, exist_ok=True)
    dist.init_process_group("gloo")
    logging.basicConfig(format="%(message)s",
                        level=logging.INFO if dist.get_rank() == 0 else logging.WARNING)
    Trainer(cfg).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
