import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from probes import ActivationProbe


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 12, 12, generator=g)
    y = (x[:, 0, :6].mean((1, 2)) > x[:, 0, 6:].mean((1, 2))).long()
    return TensorDataset(x, y)


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(8 * 16, 2),
        )


def evaluate(model, loader):
    core = model.module
    core.eval()
    stats = torch.zeros(2)
    with torch.no_grad(), ActivationProbe(core, (nn.Conv2d, nn.Linear)) as probe:
        for x, y in loader:
            stats += torch.tensor([(core(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float)
    core.train()
    names, means = probe.means()
    dist.all_reduce(stats)
    dist.all_reduce(means)
    return stats[0] / stats[1], dict(zip(names, (means / dist.get_world_size()).tolist()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, val = make_data(768, 0), make_data(200, 1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, 32, sampler=sampler)
    val_loader = DataLoader(val, 32, sampler=DistributedSampler(val, shuffle=False))
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        acc, acts = evaluate(model, val_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} acc {acc:.3f} " + " ".join(f"{k}={v:.3f}" for k, v in acts.items()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
