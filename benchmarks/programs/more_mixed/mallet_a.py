"""FSDP2 fine-tuning with best-on-validation checkpoints."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

logger = logging.getLogger("mallet")


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, d=32, depth=3, classes=6):
        super().__init__()
        self.inp = nn.Linear(16, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.out(x)


def get_loaders(bs):
    g = torch.Generator().manual_seed(2)
    x = torch.randn(640, 16, generator=g)
    y = (x @ torch.randn(16, 6, generator=g) + 2.5 * torch.randn(640, 6, generator=g)).argmax(1)
    tr, va = TensorDataset(x[:384], y[:384]), TensorDataset(x[384:], y[384:])
    ts = DistributedSampler(tr, shuffle=True)
    vs = DistributedSampler(va, shuffle=False)
    return DataLoader(tr, bs, sampler=ts), DataLoader(va, bs, sampler=vs), ts


@torch.no_grad()
def validate(model, loader):
    model.eval()
    acc = torch.zeros(2)
    for x, y in loader:
        acc[0] += F.cross_entropy(model(x), y, reduction="sum")
        acc[1] += len(y)
    dist.all_reduce(acc)
    model.train()
    return (acc[0] / acc[1]).item()


def save(model, path):
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(state, path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=14)
    ap.add_argument("--lr", type=float, default=8e-3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Net()
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train, valid, sampler = get_loaders(32)
    best = float("inf")
    out = os.path.join(tempfile.gettempdir(), f"mallet_{os.getppid()}.pt")
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        val = validate(model, valid)
        if val < best:
            best = val
            save(model, out)
        if dist.get_rank() == 0:
            logger.info("epoch %d train %.3f val %.3f best %.3f", epoch, loss.item(), val, best)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
