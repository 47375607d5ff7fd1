import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class Backbone(nn.Module):
    def __init__(self, dim=48, depth=3, classes=12):
        super().__init__()
        self.stem = nn.Linear(32, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        h = self.stem(x)
        for b in self.blocks:
            h = b(h)
        return self.head(h)


class Adapter(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.down), self.up)


def freeze(model):
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("head."))


def add_adapters(model):
    for block in model.blocks:
        block.fc1 = Adapter(block.fc1)
        block.fc2 = Adapter(block.fc2)
    return model


def make_data(rank, n=2048):
    g = torch.Generator().manual_seed(1)
    w = torch.randn(32, 12, generator=g)
    x = torch.randn(n, 32, generator=g)
    y = (torch.tanh(x) @ w).argmax(-1)
    return x[rank::2], y[rank::2]


def run_epoch(model, opt, x, y, epoch, rank):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for i in range(0, len(x), 32):
        idx = order[i : i + 32]
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    net = Backbone()
    freeze(net)
    add_adapters(net)
    model = DDP(net)
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=3e-3)
    x, y = make_data(rank)
    for epoch in range(4):
        run_epoch(model, opt, x, y, epoch, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
