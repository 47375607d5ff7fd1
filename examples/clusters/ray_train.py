"""A training by Ray Train, with two workers on this machine.

distdoctor run -- python examples/clusters/ray_train.py

Ray starts the ranks; distdoctor's recorder reaches them through the environment. On several machines point --run-dir at a folder
that all of them see:

distdoctor run --run-dir /shared/runs/train -- python examples/clusters/ray_train.py
"""

import os

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    """Points in the plane; the label says on which side of a circle they lie."""
    points = torch.randn(512, 2, generator=torch.Generator().manual_seed(0))
    return TensorDataset(points, (points.norm(dim=1) < 1.2).long())


def train_worker():
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = prepare_data_loader(DataLoader(make_data(), batch_size=32, shuffle=True))
    for epoch in range(3):
        if hasattr(loader, "sampler") and hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        train.report({"loss": loss.item()})


def main():
    # Workers are children of Ray's own daemon, on this machine and on others: what tells them to record is handed on by name.
    handed = {name: value for name, value in os.environ.items() if name.startswith("DISTDOCTOR")}
    ray.init(runtime_env={"env_vars": handed})
    TorchTrainer(train_worker, scaling_config=train.ScalingConfig(num_workers=2)).fit()


if __name__ == "__main__":
    main()
