import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from base_trainer import BaseTrainer


class BoxNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                                  nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU())
        self.box = nn.Linear(32 * 16, 4)

    def forward(self, x):
        return self.box(self.stem(x).flatten(1)).sigmoid()


def boxes(n, seed):
    g = torch.Generator().manual_seed(seed)
    xy, wh = torch.rand(n, 2, generator=g) * 0.6, 0.15 + torch.rand(n, 2, generator=g) * 0.25
    grid = torch.linspace(0, 1, 32)
    inx = (grid[None] > xy[:, :1]) & (grid[None] < xy[:, :1] + wh[:, :1])
    iny = (grid[None] > xy[:, 1:]) & (grid[None] < xy[:, 1:] + wh[:, 1:])
    img = (iny[:, :, None] & inx[:, None, :]).float().unsqueeze(1)
    img = img + 0.2 * torch.randn(img.shape, generator=g)
    return TensorDataset(img, torch.cat([xy, xy + wh], 1))


class DetTrainer(BaseTrainer):
    def build_model(self):
        return BoxNet()

    def build_datasets(self):
        return boxes(2048, 0), boxes(256, 1)

    def compute_loss(self, batch):
        return F.smooth_l1_loss(self.ddp(batch[0]), batch[1], beta=0.1)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--schedule-epochs", type=int, default=6)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=8)
    p.add_argument("--work-dir", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "work"))
    p.add_argument("--resume", action="store_true")
    cfg = p.parse_args()
    dist.init_process_group("gloo")
    trainer = DetTrainer(cfg)
    if cfg.resume:
        trainer.resume(trainer.ckpt_path)
    trainer.train()
    dist.destroy_process_group()
