import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.data import DataLoader, TensorDataset

from samplers import CurriculumSampler

log = logging.getLogger("curriculum")


def spirals(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    r = torch.rand(n, generator=g)
    noise = 0.05 + 0.25 * torch.rand(n, generator=g)
    ang = 4 * r + y * 2.094 + noise * torch.randn(n, generator=g)
    return torch.stack([r * ang.cos(), r * ang.sin()], 1), y, noise


class Net(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.freq = nn.Parameter(torch.randn(2, 24) * 2)
        self.body = nn.Sequential(nn.Linear(48, width), nn.SiLU(), nn.Dropout(0.05), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3))

    def forward(self, x):
        p = x @ self.freq
        return self.body(torch.cat([p.sin(), p.cos()], 1))


@torch.no_grad()
def validate(net, loader):
    # the validation set is small: every rank scores all of it, so all take the same decision without talking
    net.eval()
    tot = cnt = 0
    for x, y in loader:
        tot += nn.functional.cross_entropy(net(x), y, reduction="sum").item()
        cnt += len(y)
    net.train()
    return tot / cnt


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=9)
    ap.add_argument("--patience", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--draws", type=int, default=512)
    ap.add_argument("--restart", type=int, default=3, help="epochs until the learning rate goes up again")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(name)s: %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(4)
    x, y, difficulty = spirals(1500, 0)
    sampler = CurriculumSampler(difficulty, rank, world, args.draws, seed=4)
    train = DataLoader(TensorDataset(x, y), args.batch, sampler=sampler)
    val = DataLoader(TensorDataset(*spirals(300, 1)[:2]), 100)
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    sched = CosineAnnealingWarmRestarts(opt, T_0=args.restart * len(train), T_mult=1)
    best, bad = float("inf"), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for xb, yb in train:
            loss = nn.functional.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        v = validate(model.module, val)
        log.info("epoch %d train %.4f val %.4f lr %.2e", epoch, loss.item(), v, sched.get_last_lr()[0])
        best, bad = (v, 0) if v < best else (best, bad + 1)
        if bad >= args.patience:
            log.info("no better for %d epochs", bad)
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
