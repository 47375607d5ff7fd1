import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.ff(self.norm(x))


def build(dim=192):
    return nn.Sequential(nn.Linear(64, dim), Block(dim), nn.Linear(dim, 10))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--accum", type=int, default=3)
    p.add_argument("--backend", default="aot_eager")
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(81)
    data = TensorDataset(torch.randn(6144, 64, generator=g), torch.randint(0, 10, (6144,), generator=g))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=64, sampler=sampler, drop_last=True)
    ddp = DDP(build())
    model = torch.compile(ddp, backend=args.backend)
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        opt.zero_grad(set_to_none=True)
        for i, (x, y) in enumerate(loader):
            sync = (i + 1) % args.accum == 0
            with nullcontext() if sync else ddp.no_sync():
                loss = F.cross_entropy(model(x), y) / args.accum
                loss.backward()
            if sync:
                opt.step()
                opt.zero_grad(set_to_none=True)
        if dist.get_rank() == 0:
            print(epoch, round(loss.item() * args.accum, 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
