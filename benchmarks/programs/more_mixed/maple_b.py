"""Transfer learning: head first, then the whole network at a lower rate."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("maple")


class Transfer(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv1d(1, 12, 5, padding=2), nn.GELU(), nn.MaxPool1d(2),
            nn.Conv1d(12, 24, 5, padding=2), nn.GELU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
        self.head = nn.Linear(96, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def freeze(module, flag=True):
    for p in module.parameters():
        p.requires_grad_(not flag)


def waves(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (n,), generator=g)
    t = torch.linspace(0, 6.28, 48)
    phase = torch.rand(n, 1, generator=g) * 6
    x = ((y[:, None] + 1) * t + phase).sin() + 0.3 * torch.randn(n, 48, generator=g)
    return TensorDataset(x[:, None], y)


class Runner:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        net = Transfer()
        freeze(net.backbone)
        self.model = DDP(net)
        self.opt = torch.optim.AdamW(net.head.parameters(), lr=args.lr)
        self.data = waves(512, 3)
        self.sampler = DistributedSampler(self.data, seed=args.seed)
        self.loader = DataLoader(self.data, batch_size=args.bs, sampler=self.sampler)

    def thaw(self):
        net = self.model.module
        freeze(net.backbone, False)
        self.opt.add_param_group({"params": list(net.backbone.parameters()), "lr": self.args.lr * 0.3})

    def epoch(self, n):
        self.sampler.set_epoch(n)
        total = torch.zeros(2)
        for x, y in self.loader:
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--thaw-at", type=int, default=2)
    ap.add_argument("--bs", type=int, default=32)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--seed", type=int, default=8)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    run = Runner(args)
    for n in range(args.epochs):
        if n == args.thaw_at:
            run.thaw()
        loss = run.epoch(n)
        if dist.get_rank() == 0:
            log.info("epoch %d groups %d loss %.4f", n, len(run.opt.param_groups), loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
