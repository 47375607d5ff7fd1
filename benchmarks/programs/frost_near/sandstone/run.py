import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sharded import ShardedAdam


class TokenMixer(nn.Module):
    def __init__(self, channels=13, tokens=8, outputs=2):
        super().__init__()
        self.mix = nn.Linear(tokens, tokens)
        self.ff = nn.Sequential(nn.Linear(channels, 29), nn.ReLU(), nn.Linear(29, channels))
        self.out = nn.Linear(channels, outputs)

    def forward(self, x):
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.ff(x)
        return self.out(x.mean(1))


def sensors(n=1200, seed=3):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, 13, generator=g)
    y = torch.stack([x[:, :, 0].mean(1) * 2 + 4.0, x[:, :, 1].std(1) - 3.0], 1)
    return TensorDataset(x, y)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--lr", type=float, default=1e-2)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = TokenMixer()
    opt = ShardedAdam(model, lr=args.lr)
    data = sensors()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in loader:
            err = (model(x) - y).pow(2)
            opt.zero_grad()
            err.mean().backward()
            opt.step()
            total += err.detach().mean(0)
        dist.all_reduce(total)
        total /= len(loader) * dist.get_world_size()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} mse level {total[0]:.4f} spread {total[1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
