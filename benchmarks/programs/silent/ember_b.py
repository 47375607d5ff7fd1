import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class MetricLogger:
    def __init__(self):
        self.correct = torch.zeros((), dtype=torch.long)
        self.count = torch.zeros((), dtype=torch.long)

    def update(self, logits, target):
        self.correct += (logits.argmax(-1) == target).sum()
        self.count += target.numel()

    def synchronize(self):
        packed = torch.stack([self.correct, self.count])
        dist.all_reduce(packed)
        self.correct, self.count = packed.unbind()
        return self

    def __str__(self):
        return f"acc {self.correct.item() / self.count.item():.4f}"


def synth(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    w = torch.randn(10, 3, generator=torch.Generator().manual_seed(50))
    return TensorDataset(x, (x @ w + 0.5 * torch.randn(n, 3, generator=g)).argmax(1))


def build(args):
    train, val = synth(288, 1), synth(args.val_size, 2)
    sampler = DistributedSampler(train)
    train_loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    mine = range(dist.get_rank(), len(val), dist.get_world_size())
    val_loader = DataLoader(Subset(val, mine), args.batch)
    return sampler, train_loader, val_loader


def train_one_epoch(model, loader, opt):
    model.train()
    for x, y in loader:
        opt.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
        opt.step()


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    meter = MetricLogger()
    for x, y in loader:
        meter.update(model.module(x), y)
    return meter.synchronize()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--val-size", type=int, default=46)
    ap.add_argument("--batch", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(10)
    sampler, train_loader, val_loader = build(args)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 3)))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train_one_epoch(model, train_loader, opt)
        result = evaluate(model, val_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} {result} on {result.count.item()} images", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
