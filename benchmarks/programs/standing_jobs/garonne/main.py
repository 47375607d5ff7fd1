import argparse
import logging
import os
from dataclasses import dataclass

import torch.distributed.rpc as rpc

from server import Server
from worker import run_worker


@dataclass
class Config:
    epochs: int = 3
    batch: int = 32
    lr: float = 3e-3
    seed: int = 7
    site_sizes: tuple = (640, 600, 580)


def options(rank):
    return rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=8, rpc_timeout=24 * 3600, init_method="env://")


def drive(cfg, world):
    """Rank 0 holds the parameters and sends the trainers on their way."""
    trainers = world - 1
    ref = rpc.RRef(Server(trainers, cfg.lr, cfg.seed))
    futures = [rpc.rpc_async(f"trainer{i}", run_worker, args=(ref, i, cfg))
               for i in range(trainers)]
    updates = [f.wait() for f in futures]
    logging.info("training over, updates seen by the trainers: %s", updates)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    logging.basicConfig(level=logging.INFO, format=f"r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, batch=args.batch)
    name = "server" if rank == 0 else f"trainer{rank - 1}"
    rpc.init_rpc(name, rank=rank, world_size=world, rpc_backend_options=options(rank))
    if rank == 0:
        drive(cfg, world)
    rpc.shutdown()


if __name__ == "__main__":
    main()
