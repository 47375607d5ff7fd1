import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sam import SAM, frozen_statistics


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 4))

    def forward(self, x):
        return self.net(x)


def data(n=480):
    g = torch.Generator().manual_seed(23)
    c = torch.randn(4, 14, generator=g)
    y = torch.randint(0, 4, (n,), generator=g)
    return TensorDataset(c[y] + torch.randn(n, 14, generator=g), y)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(31)
    model = DDP(Net())
    sam = SAM(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    ds = data()
    sampler = DistributedSampler(ds, seed=4)
    loader = DataLoader(ds, batch_size=24, sampler=sampler, drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            sam.climb()
            with frozen_statistics(model):
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            sam.descend()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
