import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def is_main():
    return dist.get_rank() == 0


class ModelEma:
    def __init__(self, model, decay=0.95):
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for ema_v, v in zip(self.module.state_dict().values(), model.state_dict().values()):
            if ema_v.dtype.is_floating_point:
                ema_v.mul_(self.decay).add_(v, alpha=1.0 - self.decay)
            else:
                ema_v.copy_(v)


def blobs(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    centers = torch.randn(4, 16, generator=torch.Generator().manual_seed(7)) * 2
    return TensorDataset(centers[y] + torch.randn(n, 16, generator=g), y)


def make_loader(ds, batch, shuffle):
    sampler = DistributedSampler(ds, shuffle=shuffle)
    return DataLoader(ds, batch_size=batch, sampler=sampler, drop_last=shuffle), sampler


@torch.no_grad()
def validate(net, loader):
    net.eval()
    stats = torch.zeros(2)
    for x, y in loader:
        stats[0] += (net(x).argmax(1) == y).sum()
        stats[1] += y.numel()
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    ema = ModelEma(net)
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    train_loader, train_sampler = make_loader(blobs(288, 1), args.batch_size, True)
    val_loader, _ = make_loader(blobs(96, 2), 16, False)

    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            opt.step()
            if is_main():
                ema.update(model.module)
        acc = validate(ema.module, val_loader)
        if is_main():
            print(f"epoch {epoch} ema top1 {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
