import argparse
import logging
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from features import FeatureStore

log = logging.getLogger("forecast")

STAGES = [
    {"name": "raw", "epochs": 4, "features": None},
    {"name": "rff", "epochs": 6, "features": {"order": 1, "width": 384, "gamma": 0.35, "seed": 5}},
]


def synthetic_series(n, length, seed=0):
    gen = torch.Generator().manual_seed(seed)
    t = torch.arange(length + 1).float()
    freq = 0.05 + 0.4 * torch.rand(n, 1, generator=gen)
    phase = 6.283 * torch.rand(n, 1, generator=gen)
    series = torch.sin(freq * t + phase) + 0.1 * torch.randn(n, length + 1, generator=gen)
    return series[:, :-1], series[:, -1:]


def shared_directory(requested, rank):
    box = [requested]
    if rank == 0 and requested is None:
        box[0] = tempfile.mkdtemp(prefix="flint-")
    dist.broadcast_object_list(box, src=0)
    path = Path(box[0])
    path.mkdir(parents=True, exist_ok=True)
    return path


def run_stage(stage, inputs, targets, args, rank, world_size):
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(inputs.shape[1], 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    local_x, local_y = inputs[rank::world_size], targets[rank::world_size]
    steps = len(local_x) // args.batch_size
    for epoch in range(stage["epochs"]):
        order = torch.randperm(len(local_x), generator=torch.Generator().manual_seed(epoch))
        total = torch.zeros(1)
        for i in range(steps):
            idx = order[i * args.batch_size:(i + 1) * args.batch_size]
            loss = nn.functional.mse_loss(model(local_x[idx]), local_y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            log.info("stage %s epoch %d mse %.5f", stage["name"], epoch, total.item() / steps / world_size)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--series", type=int, default=6000)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(name)s: %(message)s")
    work_dir = shared_directory(args.out, rank)
    x, y = synthetic_series(args.series, args.length)

    for stage in STAGES:
        inputs = x
        if stage["features"] is not None:
            inputs = FeatureStore(work_dir, stage["features"], rank).load(x)
        run_stage(stage, inputs, y, args, rank, world_size)

    dist.barrier()
    if rank == 0:
        log.info("all stages finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
