import argparse
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from scores import mean_over_ranks


def synth(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    y = torch.sin(x[:, :1] * 1.5) + 0.5 * x[:, 1:2] * x[:, 2:3] + 0.1 * torch.randn(n, 1, generator=g)
    return TensorDataset(x, y)


class Keeper:
    """Holds the best weights of the job on disk."""

    def __init__(self, folder):
        self.weights = os.path.join(folder, "best.pt")
        self.meta = os.path.join(folder, "best.json")
        self.best = float("inf")

    def offer(self, value, model, tag):
        if value >= self.best:
            return False
        self.best = value
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), self.weights)
            with open(self.meta, "w") as f:
                json.dump({"loss": value, "tag": tag}, f)
        dist.barrier()
        return True

    def restore(self, model):
        model.module.load_state_dict(torch.load(self.weights, weights_only=True))
        with open(self.meta) as f:
            self.best = json.load(f)["loss"]


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total, count = torch.zeros(()), torch.zeros(())
    for x, y in loader:
        total += F.mse_loss(model.module(x), y, reduction="sum")
        count += y.numel()
    model.train()
    return mean_over_ranks(total, count)


def run_stage(name, model, lr, epochs, first_epoch, loader, sampler, val_loader, keeper):
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    keeper.offer(validate(model, val_loader), model, f"{name}-start")
    for epoch in range(first_epoch, first_epoch + epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        score = validate(model, val_loader)
        kept = keeper.offer(score, model, f"{name}-{epoch}")
        if dist.get_rank() == 0:
            print(f"{name} epoch {epoch} val {score:.6f} {'saved' if kept else ''}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=17)
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)

    box = [tempfile.mkdtemp(prefix="stages_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    keeper = Keeper(box[0])

    train_set, val_set = synth(768, 1 + args.seed), synth(300, 2 + args.seed)
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, batch_size=32, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=50, sampler=DistributedSampler(val_set, shuffle=False))

    model = DDP(nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 1)))
    run_stage("warmup", model, 1e-2, args.epochs, 0, loader, sampler, val_loader, keeper)
    keeper.restore(model)
    dist.barrier()
    run_stage("tune", model, 1e-3, args.epochs, args.epochs, loader, sampler, val_loader, keeper)
    if dist.get_rank() == 0:
        print("best", keeper.best, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
