import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from comm import HookState, adaptive_hook


class ConvNet(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 12, 7, stride=2), nn.ReLU(), nn.Conv1d(12, 24, 5, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool1d(4), nn.Flatten())
        self.classifier = nn.Linear(96, classes)

    def forward(self, x):
        return self.classifier(self.features(x[:, None]))


def signals(n=640):
    g = torch.Generator().manual_seed(63)
    y = torch.randint(0, 6, (n,), generator=g)
    t = torch.linspace(0, 1, 96)
    x = torch.sin(6.283 * (y[:, None] + 1) * 2 * t + torch.rand(n, 1, generator=g) * 6)
    return TensorDataset(x + 0.4 * torch.randn(n, 96, generator=g), y)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--lr", type=float, default=0.05)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(30)
    model = DDP(ConvNet())
    state = HookState()
    model.register_comm_hook(state, adaptive_hook)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    ds = signals()
    sampler = DistributedSampler(ds, seed=1)
    loader = DataLoader(ds, batch_size=args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} sent {state.bytes_sent / 1e6:.2f} MB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
