import argparse
import logging
import time

import timm
import torch
import torch.distributed as dist
import torch.nn as nn
from timm.utils import AverageMeter, accuracy, distribute_bn, reduce_tensor
from torch.nn.parallel import DistributedDataParallel as NativeDDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

_logger = logging.getLogger("train")

parser = argparse.ArgumentParser("image classification")
parser.add_argument("--model", default="resnet10t")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("-b", "--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--no-ddp-bb", action="store_true", default=True)
parser.add_argument("--dist-bn", default="reduce")


class Blobs(Dataset):
    """Coloured blobs; brightness depends on the class."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 4, (n,), generator=g)
        self.x = torch.randn(n, 3, 24, 24, generator=g) + self.y.view(-1, 1, 1, 1) * 0.5

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def train_one_epoch(model, loader, optimizer, loss_fn):
    model.train()
    m = AverageMeter()
    for x, y in loader:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        m.update(loss.item(), x.size(0))
    return m.avg


@torch.inference_mode()
def validate(model, loader, world_size):
    model.eval()
    top1 = AverageMeter()
    for x, y in loader:
        acc1 = accuracy(model(x), y, topk=(1,))[0]
        top1.update(reduce_tensor(acc1, world_size).item(), x.size(0))
    return top1.avg


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR)
    torch.manual_seed(42)
    model = timm.create_model(args.model, num_classes=4)
    model = NativeDDP(model, broadcast_buffers=not args.no_ddp_bb)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    train, val = Blobs(128, 0), Blobs(48, 1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, args.batch_size, sampler=DistributedSampler(val, shuffle=False))
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        t0 = time.time()
        sampler.set_epoch(epoch)
        loss = train_one_epoch(model, loader, optimizer, loss_fn)
        distribute_bn(model, world_size, args.dist_bn == "reduce")
        top1 = validate(model, val_loader, world_size)
        _logger.info("epoch %d loss %.4f top1 %.2f (%.1fs)", epoch, loss, top1, time.time() - t0)
    if rank == 0:
        torch.save(model.module.state_dict(), "last.pth")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
