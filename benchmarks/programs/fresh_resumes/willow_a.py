import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Whiten(nn.Module):
    def __init__(self, dim, momentum=0.05):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                stats = torch.cat([x.mean(0), (x * x).mean(0)])
                mean, square = stats.chunk(2)
                var = (square - mean * mean).clamp(min=1e-5)
                self.shift.lerp_(mean, self.momentum)
                self.scale.lerp_(var.sqrt(), self.momentum)
        return (x - self.shift) / self.scale


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Whiten(112)
        self.layers = nn.Sequential(nn.Linear(112, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 3))

    def forward(self, x):
        return self.layers(self.norm(x))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=9)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(91)
    x = 3 * torch.randn(6144, 112, generator=g) + 2
    data = TensorDataset(x, torch.randn(6144, 3, generator=g))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=64, sampler=sampler, drop_last=True)
    model = DDP(Head(), broadcast_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = F.smooth_l1_loss(model(x), y)
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(epoch, round(loss.item(), 4), round(model.module.norm.shift.mean().item(), 4), flush=True)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "willow_head.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
