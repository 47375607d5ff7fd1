"""Gesture classification; long runs are cut in pieces and continued from the last checkpoint."""
import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from runner import Runner


@dataclass
class Config:
    lr: float = 3e-3
    weight_decay: float = 0.02
    batch_size: int = 16
    epochs: int = 6
    piece: int = 3
    ema_decay: float = 0.95
    clip: float = 2.0
    seed: int = 23


def gestures(n, seed, classes=8, steps=20, axes=3):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(classes, steps, axes, generator=torch.Generator().manual_seed(77))
    y = torch.randint(classes, (n,), generator=g)
    speed = 0.7 + 0.6 * torch.rand(n, 1, 1, generator=g)
    x = proto[y] * speed + 1.3 * torch.randn(n, steps, axes, generator=g)
    return TensorDataset(x, y)


class GestureNet(nn.Module):
    def __init__(self, steps=20, axes=3, classes=8, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(steps * axes, width), nn.LayerNorm(width),
                                 nn.GELU(), nn.Linear(width, width), nn.GELU(),
                                 nn.Linear(width, classes))

    def forward(self, x):
        return self.net(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ap.add_argument("--piece", type=int, default=Config.piece)
    ap.add_argument("--lr", type=float, default=Config.lr)
    ap.add_argument("--dir", default=None)
    args = ap.parse_args()
    cfg = Config(lr=args.lr, epochs=args.epochs, piece=args.piece)
    dist.init_process_group("gloo")
    where = [args.dir or (tempfile.mkdtemp(prefix="gestures_") if dist.get_rank() == 0 else None)]
    dist.broadcast_object_list(where, src=0)
    path = Path(where[0]) / "last.pt"

    train_set, valid_set = gestures(512, 1), gestures(256, 2)
    done = 0
    while done < cfg.epochs:
        runner = Runner(cfg, GestureNet, train_set, valid_set)
        if path.exists():
            runner.resume(path)
        runner.fit(min(done + cfg.piece, cfg.epochs))
        runner.save(path)
        done = runner.epoch
    runner.say(f"finished, final accuracy {runner.evaluate(runner.average.module):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
