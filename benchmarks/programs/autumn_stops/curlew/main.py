import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn

from server import ParameterServer
from worker import Worker

log = logging.getLogger("async-sgd")

PLAN = [
    {"seconds": 8.0, "pause": 0.01},
    {"seconds": 14.0, "pause": 0.06},
    {"seconds": 5.0, "pause": 0.02},
]


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 5))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=0.03)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(name)s %(message)s")

    model = build()
    if rank == 0:
        flat = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        counts = ParameterServer(flat, args.lr).serve(range(1, world_size))
        nn.utils.vector_to_parameters(flat, model.parameters())
        gen = torch.Generator().manual_seed(999)
        x = torch.randn(2000, 24, generator=gen)
        y = (x @ torch.randn(24, 5, generator=torch.Generator().manual_seed(0))).argmax(1)
        with torch.no_grad():
            acc = (model(x).argmax(1) == y).float().mean().item()
        log.info("served %d updates, held-out accuracy %.4f", sum(counts.values()), acc)
    else:
        Worker(model, rank, **PLAN[(rank - 1) % len(PLAN)]).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
