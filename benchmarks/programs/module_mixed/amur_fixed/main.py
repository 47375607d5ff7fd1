import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from engine import Engine


class SegHead(nn.Module):
    def __init__(self, d=48, classes=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(14, d), nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, d), nn.ReLU())
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        return self.out(self.body(x))


def dataset():
    g = torch.Generator().manual_seed(44)
    centre = torch.randn(5, 14, generator=g)
    y = torch.randint(0, 5, (384,), generator=g)
    return TensorDataset(centre[y] + 1.2 * torch.randn(384, 14, generator=g), y)


def loader():
    ds = dataset()
    return DataLoader(ds, batch_size=24, sampler=DistributedSampler(ds, seed=9), drop_last=True)


def main():
    dist.init_process_group("gloo")
    box = [tempfile.mkdtemp(prefix="seg_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    Engine(SegHead, loader(), box[0]).fit(epochs=2)

    second = Engine(SegHead, loader(), box[0])
    second.resume()
    second.fit(epochs=4)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
