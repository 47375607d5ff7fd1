import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from loaders import Signals, loader


@torch.no_grad()
def predict(model, data_loader):
    """Predictions of the whole set in its own order, without the repeated tail."""
    model.eval()
    mine = torch.cat([model(x) for x, _ in data_loader])
    model.train()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.stack(parts, 1).flatten(0, 1)[: len(data_loader.dataset)]


def report(model, data_loader, epoch):
    pred = predict(model, data_loader).argmax(1)
    target = data_loader.dataset.y
    if dist.get_rank() == 0:
        print(f"epoch {epoch} acc {(pred == target).float().mean():.4f} of {len(pred)}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--val-size", type=int, default=43)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train = loader(Signals(360, 1), 12, "train")
    val = loader(Signals(a.val_size, 2), 8, "val")
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(a.epochs):
        train.sampler.set_epoch(epoch)
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        report(model.module, val, epoch)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
