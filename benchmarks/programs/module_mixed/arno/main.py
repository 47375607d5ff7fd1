import argparse
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from model import sharded
from train_utils import BestKeeper, train_epoch, validation


def make(n, seed, noise):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    return TensorDataset(x, (x[:, 0] * x[:, 1] - x[:, 2]).tanh() + noise * torch.randn(n, generator=g))


def loader(ds, batch, shuffle):
    return DataLoader(ds, batch_size=batch, sampler=DistributedSampler(ds, shuffle=shuffle, seed=2), drop_last=shuffle)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=14)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-2)
    args = p.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(23)
    model = sharded(mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train, val = loader(make(96, 1, 0.3), args.batch, True), loader(make(40, 2, 0.6), 10, False)
    box = [tempfile.mkdtemp(prefix="best_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    keeper = BestKeeper(box[0])
    for epoch in range(args.epochs):
        train.sampler.set_epoch(epoch)
        tl = train_epoch(model, opt, train)
        vl = validation(model, val)
        saved = keeper.consider(model, vl, epoch)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} train {tl:.4f} val {vl:.4f} {'saved' if saved else ''}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
