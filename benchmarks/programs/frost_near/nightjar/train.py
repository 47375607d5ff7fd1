import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from archive import TileDataset


def build_loader(dataset, args):
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    return loader, sampler


def build_model(classes=5):
    return nn.Sequential(nn.Conv2d(3, 20, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(20, 28, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(28, 40, 3, padding=1), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(5), nn.Flatten(), nn.Linear(1000, classes))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=12)
    p.add_argument("--num-workers", type=int, default=4)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(args.seed)
    loader, sampler = build_loader(TileDataset(), args)
    model = DDP(build_model())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start, running = time.perf_counter(), torch.zeros(())
        for images, labels in loader:
            loss = loss_fn(model(images), labels)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            running += loss.detach()
        seconds = time.perf_counter() - start
        logging.info("epoch %d loss %.4f %.1f tiles/s", epoch, running.item() / len(loader),
                     len(loader) * args.batch_size / seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
