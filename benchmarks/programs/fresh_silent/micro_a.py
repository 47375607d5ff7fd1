import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Rows(Dataset):
    def __init__(self, n=768, dim=40):
        g = torch.Generator().manual_seed(6)
        self.x = torch.randn(n, dim, generator=g) * torch.linspace(0.5, 4.0, n)[:, None]
        self.y = torch.sin(self.x[:, :1]) * 3

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Mlp(nn.Module):
    def __init__(self, dim=40, width=128):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


def micro_step(model, x, y, accumulate, last):
    with nullcontext() if last else model.no_sync():
        loss = F.mse_loss(model(x), y) / accumulate
        loss.backward()
    return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--accumulate", type=int, default=4)
    ap.add_argument("--clip", type=float, default=0.5)
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(20)
    model = DDP(Mlp())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Rows()
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        shown = torch.zeros(())
        for i, (x, y) in enumerate(loader):
            last = (i + 1) % args.accumulate == 0
            shown += micro_step(model, x, y, args.accumulate, last)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            if last:
                opt.step()
                opt.zero_grad()
        if rank == 0:
            print(f"epoch {epoch} loss {shown.item() / (len(loader) / args.accumulate):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
