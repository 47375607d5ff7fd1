"""Joint training where only some ranks host the image tower."""
import argparse
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class Layout:
    members: dict = field(default_factory=lambda: {"image": (0, 1), "trunk": (0, 1, 2, 3)})

    def hosts(self, name, rank):
        return rank in self.members[name]


class Topology:
    def __init__(self, layout):
        self.layout = layout
        self.rank = dist.get_rank()
        self.handles = {}

    def materialize(self):
        for name, ranks in self.layout.members.items():
            if not self.layout.hosts(name, self.rank):
                continue
            self.handles[name] = dist.new_group(list(ranks))
        return self

    def average(self, name, tensors):
        group = self.handles[name]
        size = dist.get_world_size(group)
        for t in tensors:
            dist.all_reduce(t, group=group)
            t /= size


class Towers(nn.Module):
    def __init__(self, with_image, dim=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))
        self.image = nn.Linear(24, dim) if with_image else None

    def forward(self, text, pixels):
        h = text
        if self.image is not None:
            h = h + self.image(pixels)
        return self.trunk(h)


class Trainer:
    def __init__(self, topo, lr):
        self.topo = topo
        torch.manual_seed(5)
        self.net = Towers(topo.layout.hosts("image", topo.rank))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr)
        self.g = torch.Generator().manual_seed(50 + topo.rank)

    def sync(self):
        self.topo.average("trunk", [p.grad for p in self.net.trunk.parameters()])
        if self.net.image is not None:
            self.topo.average("image", [p.grad for p in self.net.image.parameters()])

    def step(self):
        text = torch.randn(8, 16, generator=self.g)
        pixels = torch.randn(8, 24, generator=self.g)
        label = torch.randint(0, 4, (8,), generator=self.g)
        loss = nn.functional.cross_entropy(self.net(text, pixels), label)
        self.opt.zero_grad()
        loss.backward()
        self.sync()
        self.opt.step()
        return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--lr", type=float, default=0.05)
    a = p.parse_args()
    dist.init_process_group("gloo")
    topo = Topology(Layout()).materialize()
    trainer = Trainer(topo, a.lr)
    for s in range(a.steps):
        loss = trainer.step()
        if topo.rank == 0 and s % 4 == 0:
            print(f"step {s} loss {loss:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
