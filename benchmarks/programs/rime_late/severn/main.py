"""Classifies procedurally drawn textures; long runs are cut into several jobs.

Each job trains up to --until steps and leaves a checkpoint; the next job continues
with --continue-from. Only weights, optimizer moments and the step count are kept.
"""
import argparse
import itertools
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import schedule

HERE = os.path.dirname(os.path.abspath(__file__))
logger = logging.getLogger("textures")


class Textures(Dataset):
    def __init__(self, count, seed, size=16):
        self.count, self.seed = count, seed
        axis = torch.arange(size, dtype=torch.float32)
        self.rows, self.cols = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(self.seed * 1_000_003 + i)
        kind = i % 4
        a, b = (torch.rand(2, generator=gen) * 0.5 + 0.5).tolist()
        wave = [self.rows * a, self.cols * a, (self.rows + self.cols) * a, self.rows * a * self.cols * b / 6][kind]
        return (torch.sin(wave) + 0.4 * torch.randn(wave.shape, generator=gen)).unsqueeze(0), kind


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 4),
    )


def batches(loader, sampler, done):
    """Endless batches, beginning with the one that follows `done` finished steps."""
    per_epoch = len(loader)
    for epoch in itertools.count(done // per_epoch):
        sampler.set_epoch(epoch)
        skip = done % per_epoch if epoch == done // per_epoch else 0
        yield from itertools.islice(loader, skip, None)


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    counts = torch.zeros(2)
    for image, kind in loader:
        counts += torch.tensor([(net(image).argmax(1) == kind).sum().item(), len(kind)])
    dist.all_reduce(counts)
    net.train()
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, default=480)
    parser.add_argument("--total", type=int, default=960)
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--count", type=int, default=1920)
    parser.add_argument("--save-to", default=os.path.join(HERE, "job.pt"))
    parser.add_argument("--continue-from", default=None)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(31)
    train, test = Textures(args.count, seed=1), Textures(400, seed=2)
    sampler = DistributedSampler(train, seed=7)
    loader = DataLoader(train, args.batch, sampler=sampler)
    test_loader = DataLoader(torch.utils.data.Subset(test, range(rank, len(test), world)), 100)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    done = 0
    if args.continue_from:
        path = os.path.join(HERE, args.continue_from)
        state = torch.load(path, map_location="cpu")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
        logger.info("continuing after %d steps", done)
    scheduler = schedule.build(optimizer, args.warmup, args.total, start=done)

    source = batches(loader, sampler, done)
    for done in range(done + 1, args.until + 1):
        image, kind = next(source)
        loss = nn.functional.cross_entropy(model(image), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if done % 50 == 0:
            logger.info("step %d lr %.6f loss %.4f", done, scheduler.get_last_lr()[0], loss.item())
    logger.info("accuracy %.3f", evaluate(model.module, test_loader))
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, args.save_to)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
