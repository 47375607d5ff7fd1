"""Short-term load forecasting from meter files."""
import argparse
import os
import shutil
import tempfile
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from windows import HISTORY, HORIZON, MeterWindows, generate


@dataclass
class Config:
    epochs: int = 8
    batch: int = 32
    lr: float = 3e-3
    meters: int = 32
    dropout: float = 0.1
    seed: int = 19


class Forecaster(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(HISTORY, 64), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, HORIZON),
        )

    def forward(self, history):
        level = history.mean(-1, keepdim=True)
        return level + self.layers(history - level)


def held_out_error(net, folder, rank, world, cfg):
    net.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for h, f in DataLoader(MeterWindows(folder, rank, world, 0), batch_size=cfg.batch):
            totals[0] += (net(h) - f).abs().sum().item()
            totals[1] += f.numel()
    dist.all_reduce(totals)
    net.train()
    return (totals[0] / totals[1]).item()


def train(cfg, root):
    rank, world = dist.get_rank(), dist.get_world_size()
    train_dir, held_dir = os.path.join(root, "train"), os.path.join(root, "held")
    if rank == 0:
        generate(train_dir, cfg.meters, cfg.seed)
        generate(held_dir, 8, cfg.seed + 1000)
    dist.barrier()

    cfg.seed += rank
    torch.manual_seed(cfg.seed)
    model = DDP(Forecaster(cfg.dropout))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    data = MeterWindows(train_dir, rank, world, cfg.seed)
    loader = DataLoader(data, batch_size=cfg.batch, drop_last=True)

    for epoch in range(cfg.epochs):
        data.set_epoch(epoch)
        total = torch.zeros(2, dtype=torch.float64)
        for history, future in loader:
            loss = nn.functional.smooth_l1_loss(model(history), future, beta=0.1)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total[0] += loss.item()
            total[1] += 1
        dist.all_reduce(total)
        mae = held_out_error(model.module, held_dir, rank, world, cfg)
        if rank == 0:
            print(f"epoch {epoch} loss {(total[0] / total[1]).item():.5f} held-out mae {mae:.4f}", flush=True)
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, os.path.join(root, "forecaster.pt"))


def main():
    parser = argparse.ArgumentParser()
    for f in fields(Config):
        parser.add_argument(f"--{f.name}", type=f.type, default=f.default)
    cfg = Config(**vars(parser.parse_args()))
    dist.init_process_group("gloo")
    where = [tempfile.mkdtemp(prefix="meters-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where, src=0)
    train(cfg, where[0])
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(where[0], ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
