import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from checkpointing import BestKeeper
from nets import Forecaster

log = logging.getLogger("forecast")


def series(n, seed, noise=0.7, window=96, horizon=24):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(window + horizon).float()
    phase = torch.rand(n, 2, generator=g) * 2 * math.pi
    period = torch.tensor([12.0, 40.0]) * (0.8 + 0.4 * torch.rand(n, 2, generator=g))
    wave = torch.sin(2 * math.pi * t[None, None] / period[..., None] + phase[..., None]).sum(1)
    wave = wave + noise * torch.randn(wave.shape, generator=g)
    return TensorDataset(wave[:, :window], wave[:, window:])


def train_epoch(model, loader, opt):
    model.train()
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    err, n = 0.0, 0
    for x, y in loader:
        err += F.mse_loss(model(x), y, reduction="sum").item()
        n += y.numel()
    total = torch.tensor([err, n], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--ckpt", default="best")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Forecaster()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    train = series(640, seed=1)
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    valid = series(128, seed=2)
    val_loader = DataLoader(valid, args.batch_size, sampler=DistributedSampler(valid, shuffle=False))

    keeper = BestKeeper(args.ckpt)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, opt)
        score = validate(model, val_loader)
        log.info("epoch %d train %.4f valid %.4f", epoch, loss, score)
        keeper.update(epoch, score, model, opt)

    log.info("best %.4f", keeper.best)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
