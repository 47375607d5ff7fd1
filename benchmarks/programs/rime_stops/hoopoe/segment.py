"""Binary segmentation of synthetic cells with a sharded model."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torchmetrics
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def cells(n, seed, size=24):
    g = torch.Generator().manual_seed(seed)
    ax = torch.arange(size).float()
    mask = torch.zeros(n, size, size, dtype=torch.bool)
    for _ in range(3):
        c = torch.rand(n, 2, generator=g) * size
        r = 2 + 3 * torch.rand(n, generator=g)
        d2 = (ax[None, :, None] - c[:, 0, None, None]) ** 2 + (ax[None, None] - c[:, 1, None, None]) ** 2
        mask |= d2 < r[:, None, None] ** 2
    img = mask.float() + 0.7 * torch.randn(n, size, size, generator=g)
    return TensorDataset(img.unsqueeze(1), mask.float().unsqueeze(1))


class ConvBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class SegNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.blocks = nn.ModuleList([ConvBlock(1, width), ConvBlock(width, width), ConvBlock(width, width)])
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return self.out(x)


class Tracker:
    def __init__(self, rank):
        self.rank = rank
        self.running = torchmetrics.MeanMetric(sync_on_compute=False)
        self.iou = torchmetrics.JaccardIndex(task="binary")

    def heartbeat(self, step):
        if self.rank == 0:
            print(f"step {step} loss on the first worker {self.running.compute():.4f}", flush=True)
        self.running.reset()

    def validation(self):
        value = self.iou.compute().item()
        self.iou.reset()
        return value


def save_full(model, path, rank):
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--every", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = SegNet()
    mesh = init_device_mesh("cpu", (world,))
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    train, valid = cells(1280, 1), cells(256, 2)
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(valid, args.batch_size, sampler=DistributedSampler(valid, shuffle=False))
    tracker, step, best = Tracker(rank), 0, 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            tracker.running.update(loss.detach())
            if step % args.every == 0:
                tracker.heartbeat(step)
        model.eval()
        with torch.no_grad():
            for x, y in val_loader:
                tracker.iou.update(model(x).sigmoid(), y.int())
        iou = tracker.validation()
        if rank == 0:
            print(f"epoch {epoch} iou {iou:.4f}", flush=True)
        if iou > best:
            best = iou
            save_full(model, "segnet_best.pt", rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
