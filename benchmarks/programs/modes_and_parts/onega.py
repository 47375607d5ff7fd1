"""Texture classifier with a robustness report: pictures are passed through random filter nets before scoring."""
import argparse
import json
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Options:
    epochs: int = 4
    batch: int = 32
    lr: float = 3e-3
    seed: int = 44
    corruptors: int = 3


class Corruptor(nn.Module):
    """A fixed random residual filter."""

    def __init__(self, strength):
        super().__init__()
        self.filter = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1))
        self.strength = strength
        self.requires_grad_(False)

    def forward(self, x):
        return x + self.strength * self.filter(x)


class TextureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(3, 24), nn.ReLU())
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def textures(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    i = torch.arange(14.0)
    freq = torch.tensor([0.6, 1.1, 1.7, 2.4])[y].view(-1, 1, 1)
    phase = torch.rand(n, 1, 1, generator=g) * 6.28
    clean = torch.sin(freq * (i.view(1, 1, -1) + i.view(1, -1, 1)) + phase)
    return TensorDataset((clean + 0.8 * torch.randn(n, 14, 14, generator=g)).unsqueeze(1), y)


@torch.no_grad()
def robustness(net, corruptors, data):
    net.eval()
    x, y = data.tensors
    report = {"clean": (net(x).argmax(1) == y).float().mean().item()}
    for k, c in enumerate(corruptors):
        report[f"filter{k}"] = (net(c(x)).argmax(1) == y).float().mean().item()
    net.train()
    return report


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Options.epochs)
    ap.add_argument("--corruptors", type=int, default=Options.corruptors)
    a = ap.parse_args()
    o = Options(epochs=a.epochs, corruptors=a.corruptors)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(o.seed)
    model = DDP(TextureNet())
    torch.manual_seed(o.seed + 10 * rank)
    corruptors = nn.ModuleList(Corruptor(0.5 + 0.25 * k) for k in range(o.corruptors))
    train, held = textures(768, 1), textures(160, 2)
    sampler = DistributedSampler(train, seed=o.seed, drop_last=True)
    loader = DataLoader(train, o.batch, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=o.lr)
    history = []
    for epoch in range(o.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            history.append(robustness(model.module, corruptors, held))
            print(f"epoch {epoch} loss {total.item() / len(loader) / world:.4f} "
                  + " ".join(f"{k} {v:.3f}" for k, v in history[-1].items()), flush=True)
    if rank == 0:
        os.makedirs("out_onega", exist_ok=True)
        torch.save(model.module.state_dict(), "out_onega/net.pt")
        with open("out_onega/robustness.json", "w") as f:
            json.dump(history, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
