import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Gated(nn.Module):
    def __init__(self, total, dim=24, width=96, experts=4):
        super().__init__()
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 1)) for _ in range(experts))
        self.total = total
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        temperature = 2.0 - 1.7 * self.step / self.total
        weights = (self.gate(x) / temperature).softmax(-1)
        outputs = torch.cat([e(x) for e in self.experts], dim=-1)
        self.step += 1
        return (weights * outputs).sum(-1, keepdim=True)


class Surface(Dataset):
    def __init__(self, n=960, dim=24):
        g = torch.Generator().manual_seed(70)
        self.x = torch.randn(n, dim, generator=g)
        self.y = torch.where(self.x[:, :1] > 0, self.x[:, 1:2] * 2, -self.x[:, 2:3])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=32)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Surface()
    sampler = DistributedSampler(data, shuffle=True, seed=12)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    torch.manual_seed(16)
    model = DDP(Gated(args.epochs * len(loader)))
    compiled = torch.compile(model, backend="eager")
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(compiled(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
