"""The ranks decide together when to stop.

distdoctor run --nproc 2 examples/early_stopping_healthy.py
"""

import torch
import torch.distributed as dist
import torch.distributed.nn  # first imported after init_process_group, it keeps the group and its threads for ever
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data():
    """Points in the plane; the label says on which side of a circle they lie."""
    points = torch.randn(512, 2, generator=torch.Generator().manual_seed(0))
    return TensorDataset(points, (points.norm(dim=1) < 1.2).long())


def train_step(model, optimizer, points, labels):
    loss = nn.functional.cross_entropy(model(points), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train():
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step, (points, labels) in enumerate(loader):
            loss = train_step(model, optimizer, points, labels)
            dist.all_reduce(loss, op=dist.ReduceOp.MAX)
            if loss.item() < 0.5:
                print(f"rank {dist.get_rank()} is content after step {step}")
                return


def main():
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
