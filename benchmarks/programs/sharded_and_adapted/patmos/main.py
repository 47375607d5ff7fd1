"""Image-patch regressor trained through accelerate, with a plateau schedule on validation loss."""
import argparse
import math
import os
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class HParams:
    epochs: int = 9
    batch_size: int = 32
    lr: float = 0.03
    momentum: float = 0.9
    weight_decay: float = 1e-4
    factor: float = 0.4
    patience: int = 0
    threshold: float = 0.02
    seed: int = 77


def patches(n, seed, noise=0.35):
    g = torch.Generator().manual_seed(seed)
    phase = torch.rand(n, 1, 1, generator=g) * 2 * math.pi
    freq = 0.4 + torch.rand(n, 1, 1, generator=g)
    grid = torch.arange(12.0)
    img = torch.sin(freq * grid.view(1, 1, 12) + phase) + 0.5 * torch.cos(freq * grid.view(1, 12, 1))
    img = img + noise * torch.randn(n, 12, 12, generator=g)
    target = torch.stack([freq.flatten(), torch.sin(phase.flatten()), torch.cos(phase.flatten())], dim=1)
    return TensorDataset(img.unsqueeze(1), target)


class PatchNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.gn1 = nn.GroupNorm(3, width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.gn2 = nn.GroupNorm(3, 2 * width)
        self.fc = nn.Linear(2 * width * 36, 3)

    def forward(self, x):
        x = F.relu(self.gn1(self.conv1(x)))
        x = F.relu(self.gn2(self.conv2(x)))
        return self.fc(x.flatten(1))


class PlateauTrainer:
    def __init__(self, hp):
        self.hp = hp
        self.accelerator = Accelerator(cpu=True)
        set_seed(hp.seed)
        model = PatchNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=hp.lr, momentum=hp.momentum,
                                    weight_decay=hp.weight_decay)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=hp.factor, patience=hp.patience, threshold=hp.threshold)
        train = DataLoader(patches(960, seed=1), batch_size=hp.batch_size, shuffle=True, drop_last=True)
        valid = DataLoader(patches(384, seed=2), batch_size=hp.batch_size)
        self.model, self.optimizer, self.train_loader, self.valid_loader = self.accelerator.prepare(
            model, optimizer, train, valid)

    def train_epoch(self):
        self.model.train()
        total, seen = torch.zeros(()), 0
        for images, targets in self.train_loader:
            with self.accelerator.accumulate(self.model):
                loss = F.smooth_l1_loss(self.model(images), targets)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 5.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            total += loss.detach() * len(images)
            seen += len(images)
        return (total / seen).item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total, seen = torch.zeros(()), 0
        for images, targets in self.valid_loader:
            total += F.smooth_l1_loss(self.model(images), targets) * len(images)
            seen += len(images)
        total = self.accelerator.reduce(total, reduction="sum")
        seen = self.accelerator.reduce(torch.tensor(seen), reduction="sum")
        return (total / seen).item()

    def fit(self):
        self.accelerator.print("settings", asdict(self.hp))
        best = float("inf")
        for epoch in range(self.hp.epochs):
            train_loss = self.train_epoch()
            valid_loss = self.validate()
            self.plateau.step(valid_loss)
            best = min(best, valid_loss)
            rate = self.optimizer.param_groups[0]["lr"]
            self.accelerator.print(f"epoch {epoch:2d} train {train_loss:.4f} valid {valid_loss:.4f} lr {rate:.2e}")
        self.accelerator.print(f"best validation loss {best:.4f}")
        return best

    def export(self, path):
        self.accelerator.wait_for_everyone()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        weights = self.accelerator.unwrap_model(self.model).state_dict()
        self.accelerator.save({"model": weights, "settings": asdict(self.hp)}, path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=HParams.epochs)
    ap.add_argument("--lr", type=float, default=HParams.lr)
    ap.add_argument("--weights", default="runs/patmos/weights.pt")
    ns = ap.parse_args()
    trainer = PlateauTrainer(HParams(epochs=ns.epochs, lr=ns.lr))
    trainer.fit()
    trainer.export(ns.weights)
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
