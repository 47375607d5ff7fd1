import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from preempt import NoticeEmulator, PreemptionGuard


class SmallResNet(nn.Module):
    def __init__(self, width=24, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.body = nn.ModuleList([
            nn.Sequential(nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1),
                          nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1))
            for _ in range(3)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for blk in self.body:
            x = x + blk(x)
        return self.head(x.mean((2, 3)))


def images(n=4096):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 10, (n,), generator=g)
    proto = torch.randn(10, 3, 8, 8, generator=g)
    x = nn.functional.interpolate(proto, 32)[y] + torch.randn(n, 3, 32, 32, generator=g)
    return TensorDataset(x, y)


def save(path, model, opt, epoch, step):
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "epoch": epoch, "step": step}, path)
    dist.barrier()


def run(args):
    rank = dist.get_rank()
    data = images()
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    torch.manual_seed(1)
    model = DDP(SmallResNet())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    guard, notice = PreemptionGuard(), NoticeEmulator(args.notice_after)
    path = os.path.join(tempfile.gettempdir(), f"resnet-{os.environ['MASTER_PORT']}.pt")

    stopped = False
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            opt.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            if guard.agreed():
                save(path, model, opt, epoch, step)
                stopped = True
                break
        if stopped:
            break
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print("stopped for preemption" if stopped else "finished", flush=True)
        if os.path.exists(path):
            os.remove(path)
    notice.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--notice-after", type=int, default=10)
    args = p.parse_args()
    dist.init_process_group("gloo")
    run(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
