"""Scene tagger, accelerate loop."""
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset, random_split


class Scenes(Dataset):
    def __init__(self, n, classes=10, size=16):
        g = torch.Generator().manual_seed(99)
        proto = torch.randn(classes, 3, size, size, generator=g)
        self.labels = torch.randint(classes, (n,), generator=g)
        self.images = 0.3 * proto[self.labels] + torch.randn(n, 3, size, size, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def augment(x):
    x = x + 0.1 * torch.randn_like(x)
    keep = torch.rand(x.size(0), 1, 1, 1) > 0.1
    return x * keep


def build_datasets(args):
    full = Scenes(args.num_scenes)
    n_val = int(len(full) * args.val_ratio)
    return random_split(full, [len(full) - n_val, n_val], generator=torch.Generator().manual_seed(args.seed))


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.GroupNorm(4, 48), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(48 * 16, 64), nn.ReLU(), nn.Linear(64, 10))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--num-scenes", type=int, default=1200)
    p.add_argument("--val-ratio", type=float, default=0.2)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=1234)
    p.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "ckpt"))
    args = p.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(args.seed, device_specific=True)
    train_set, val_set = build_datasets(args)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, args.batch_size)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)
    accelerator.print(f"train {len(train_set)} val {len(val_set)} steps per epoch {len(train_loader)}")

    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros(1)
        for images, labels in train_loader:
            loss = F.cross_entropy(model(augment(images)), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        train_loss = accelerator.reduce(total, "mean").item() / len(train_loader)

        model.eval()
        hits, count = 0, 0
        for images, labels in val_loader:
            with torch.no_grad():
                pred = model(images).argmax(1)
            pred, labels = accelerator.gather_for_metrics((pred, labels))
            hits += (pred == labels).sum().item()
            count += len(labels)
        acc = hits / count
        accelerator.print(f"epoch {epoch}: loss {train_loss:.4f} val_acc {acc:.4f} ({count})")
        if acc > best:
            best = acc
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                os.makedirs(args.out, exist_ok=True)
                accelerator.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.out, "best.bin"))
    accelerator.print(f"best {best:.4f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
