import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class PairData(Dataset):
    def __init__(self, n=480, dim=16):
        g = torch.Generator().manual_seed(9)
        self.left = torch.randn(n, dim, generator=g)
        self.same = (torch.rand(n, generator=g) < 0.5).float()
        near = self.left + 0.2 * torch.randn(n, dim, generator=g)
        far = torch.randn(n, dim, generator=g)
        self.right = torch.where(self.same[:, None] > 0, near, far)
        self.right[301] = self.left[301]
        self.same[301] = 1.0

    def __len__(self):
        return len(self.left)

    def __getitem__(self, i):
        return self.left[i], self.right[i], self.same[i]


class Encoder(nn.Module):
    def __init__(self, dim=16, out=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 64), nn.Tanh(), nn.Linear(64, out))

    def forward(self, a, b):
        return self.body(a), self.body(b)


def contrastive(za, zb, same, margin=1.0):
    distance = ((za - zb).pow(2).sum(dim=1) + 1e-8).sqrt()
    pull = same * distance
    push = (1 - same) * F.relu(margin - distance)
    return (pull + push).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=12)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(Encoder())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = PairData()
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for a, b, same in loader:
            za, zb = model(a, b)
            loss = contrastive(za, zb, same)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
