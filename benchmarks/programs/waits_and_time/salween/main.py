import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist

from loop import TrainLoop
from preempt import NoticeBoard

logger = logging.getLogger("salween")


def build_parser():
    p = argparse.ArgumentParser(description="denoising autoencoder on sensor windows")
    p.add_argument("--windows", type=int, default=1200)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--micro", type=int, default=2)
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--save-every", type=int, default=50)
    p.add_argument("--seed", type=int, default=77)
    p.add_argument("--drill-step", type=int, default=36, help="simulate a spot notice at this step")
    p.add_argument("--drill-rank", type=int, default=1)
    return p


def main():
    args = build_parser().parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(levelname).1s rank{rank} %(message)s")
    torch.set_num_threads(1)
    box = [tempfile.mkdtemp(prefix="salween_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)

    board = NoticeBoard()
    board.install()
    loop = TrainLoop(args, rank, world, box[0], board)
    reached = loop.run()
    if rank == 0:
        logger.info("left the loop at step %d, files: %s", reached, sorted(os.listdir(box[0])))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
