"""Image classification, reference style: train on all ranks, validate and checkpoint on the first one."""
import argparse
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("classify")


@dataclass
class Config:
    epochs: int = 3
    batch_size: int = 16
    lr: float = 0.1
    label_smoothing: float = 0.1
    accumulate: int = 1
    seed: int = 3


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout))
        self.skip = nn.Identity() if cin == cout and stride == 1 else nn.Sequential(
            nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        return torch.relu(self.main(x) + self.skip(x))


class ResNetMini(nn.Module):
    def __init__(self, classes, widths=(8, 16)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        layers, cin = [], widths[0]
        for i, w in enumerate(widths):
            layers.append(Block(cin, w, 1 if i == 0 else 2))
            cin = w
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


def synthetic(n, seed, classes=6, size=12):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    proto = torch.randn(classes, 3, size, size, generator=torch.Generator().manual_seed(0))
    return TensorDataset(0.7 * proto[y] + torch.randn(n, 3, size, size, generator=g), y)


def train_one_epoch(model, criterion, optimizer, loader, epoch, rank):
    model.train()
    meter, begin = AverageMeter(), time.perf_counter()
    for image, target in loader:
        loss = criterion(model(image), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), len(image))
    if rank == 0:
        log.info("epoch %d train loss %.4f (%.1fs)", epoch, meter.avg, time.perf_counter() - begin)


@torch.no_grad()
def evaluate(model, criterion, loader):
    model.eval()
    loss, acc = AverageMeter(), AverageMeter()
    for image, target in loader:
        output = model(image)
        loss.update(criterion(output, target).item(), len(image))
        acc.update((output.argmax(1) == target).float().mean().item(), len(image))
    log.info("test loss %.4f acc@1 %.3f", loss.avg, acc.avg)
    return acc.avg


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--batch-size", type=int, default=Config.batch_size)
    p.add_argument("--lr", type=float, default=Config.lr)
    p.add_argument("--output-dir", type=Path, default=Path("runs") / Path(__file__).stem)
    a = p.parse_args()
    cfg = Config(epochs=a.epochs, batch_size=a.batch_size, lr=a.lr)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg.seed)

    train, val = synthetic(256, 1), synthetic(128, 2)
    sampler = DistributedSampler(train, seed=cfg.seed)
    train_loader = DataLoader(train, cfg.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, 32, shuffle=False)
    model = DDP(ResNetMini(6))
    criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.epochs)

    best = 0.0
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, train_loader, epoch, rank)
        scheduler.step()
        if rank == 0:
            acc = evaluate(model, criterion, val_loader)
            a.output_dir.mkdir(parents=True, exist_ok=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                     "scheduler": scheduler.state_dict(), "epoch": epoch}
            torch.save(state, a.output_dir / "checkpoint.pth")
            if acc > best:
                best = acc
                torch.save(state, a.output_dir / "best.pth")
        dist.barrier()
    if rank == 0:
        log.info("best acc %.3f", best)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
