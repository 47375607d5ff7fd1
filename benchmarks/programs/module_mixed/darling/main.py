"""Rank 0 alone scores the validation set between epochs while the other ranks wait for its verdict."""
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, PATIENCE = 5, 2


def tensors(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


class Stopper:
    def __init__(self, patience):
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def update(self, score):
        self.bad = 0 if score < self.best else self.bad + 1
        self.best = min(self.best, score)
        return self.bad >= self.patience


class Verdict:
    """What rank 0 found out, for everybody: stop or not, and a factor for the learning rate."""

    def __init__(self):
        self.stopper = Stopper(PATIENCE)

    @torch.no_grad()
    def _score(self, net, loader):
        net.eval()
        total = n = 0
        for x, y in loader:
            total += F.cross_entropy(net(x), y, reduction="sum").item()
            n += len(y)
        net.train()
        return total / n

    def __call__(self, model, loader):
        out = torch.zeros(3)
        if dist.get_rank() == 0:
            score = self._score(model.module, loader)
            out = torch.tensor([score, float(self.stopper.update(score)), 0.5 if self.stopper.bad else 1.0])
        dist.broadcast(out, src=0)
        return out.tolist()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2)))
    torch.manual_seed(1000 + dist.get_rank())
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    ds = tensors(512, 1)
    sampler = DistributedSampler(ds, seed=3)
    train = DataLoader(ds, batch_size=32, sampler=sampler, drop_last=True)
    val = DataLoader(tensors(600, 2), batch_size=100) if dist.get_rank() == 0 else None
    verdict = Verdict()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        score, stop, factor = verdict(model, val)
        for g in opt.param_groups:
            g["lr"] *= factor
        if dist.get_rank() == 0:
            print(f"epoch {epoch} val {score:.4f} lr {opt.param_groups[0]['lr']:.4f}", flush=True)
        if stop:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
