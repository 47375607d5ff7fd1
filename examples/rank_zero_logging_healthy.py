"""Everybody averages the loss; rank 0 prints it.

distdoctor run --nproc 2 examples/rank_zero_logging_healthy.py
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


def average(loss):
    total = loss.clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


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
            if step % 4 == 3:
                mean = average(loss)
                if dist.get_rank() == 0:
                    print(f"epoch {epoch} step {step} loss {mean:.3f}")


def main():
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
