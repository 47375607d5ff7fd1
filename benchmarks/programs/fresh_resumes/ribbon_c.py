import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Distilled(nn.Module):
    def __init__(self, phase):
        super().__init__()
        self.phase = phase
        self.body = nn.Sequential(nn.Linear(144, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU())
        self.main_head = nn.Linear(640, 12)
        self.late_head = nn.Linear(640, 12)

    def forward(self, x):
        h = self.body(x)
        return self.main_head(h) if self.phase == 1 else self.late_head(h)


def run_epoch(model, loader, opt, accum):
    last_loss = None
    opt.zero_grad(set_to_none=True)
    for i, (x, y) in enumerate(loader, start=1):
        if i % accum:
            with model.no_sync():
                loss = F.cross_entropy(model(x), y)
                loss.backward()
        else:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
            last_loss = loss.detach()
    return last_loss


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--phase", type=int, default=1)
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.02)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(51)
    x = torch.randn(6144, 144, generator=g)
    w = torch.randn(144, 12, generator=g)
    data = TensorDataset(x, (x @ w).argmax(1))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=64, sampler=sampler, drop_last=True)
    model = DDP(Distilled(args.phase), find_unused_parameters=True)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = run_epoch(model, loader, opt, args.accum)
        if dist.get_rank() == 0:
            print(epoch, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
