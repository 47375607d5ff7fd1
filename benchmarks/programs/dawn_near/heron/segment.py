"""Segments synthetic scenes of discs and bars with a small encoder-decoder."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset

from light import Module, Trainer

CLASSES = 6


class Scenes(Dataset):
    def __init__(self, n, size, seed):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        self.images = torch.randn(n, 3, size, size, generator=g) * 0.3
        self.masks = torch.zeros(n, size, size, dtype=torch.uint8)
        colours = torch.randn(CLASSES, 3, generator=torch.Generator().manual_seed(77))
        for i in range(n):
            for c in torch.randint(1, CLASSES, (3,), generator=g).tolist():
                cy, cx = torch.randint(0, size, (2,), generator=g).tolist()
                r = int(torch.randint(5, size // 4, (1,), generator=g))
                if c % 2:
                    inside = (yy - cy) ** 2 + (xx - cx) ** 2 < r * r
                else:
                    inside = ((yy - cy).abs() < r // 2) & ((xx - cx).abs() < r)
                self.masks[i][inside] = c
            self.images[i] += colours[self.masks[i].long()].permute(2, 0, 1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.masks[i].long()


def block(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.GroupNorm(4, cout), nn.SiLU())


class SegModel(Module):
    def __init__(self, width=12, lr=3e-3, total=200):
        super().__init__()
        self.lr, self.total = lr, total
        self.stem = block(3, width)
        self.down = nn.Sequential(block(width, 2 * width, 2), block(2 * width, 2 * width))
        self.up = block(3 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)
        self.validation_step_outputs = []

    def forward(self, x):
        a = self.stem(x)
        b = F.interpolate(self.down(a), scale_factor=2, mode="nearest")
        return self.head(self.up(torch.cat([a, b], 1)))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.total)

    def training_step(self, wrapped, batch):
        x, y = batch
        return F.cross_entropy(wrapped(x), y)

    def validation_step(self, batch, step):
        x, y = batch
        logits = self(x)
        self.validation_step_outputs.append({"logits": logits, "target": y})

    def on_validation_epoch_end(self):
        inter, union = torch.zeros(CLASSES), torch.zeros(CLASSES)
        loss = []
        for out in self.validation_step_outputs:
            pred = out["logits"].argmax(1)
            loss.append(F.cross_entropy(out["logits"], out["target"]))
            for c in range(CLASSES):
                p, t = pred == c, out["target"] == c
                inter[c] += (p & t).sum()
                union[c] += (p | t).sum()
        miou = (inter / union.clamp(min=1)).mean()
        return {"val_loss": torch.stack(loss).mean(), "val_miou": miou}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--val-every", type=int, default=10)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--size", type=int, default=48)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(11)
    module = SegModel(total=args.steps)
    trainer = Trainer(args.steps, args.val_every)
    trainer.fit(module, Scenes(512, args.size, 1), Scenes(192, args.size, 2), args.batch_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
