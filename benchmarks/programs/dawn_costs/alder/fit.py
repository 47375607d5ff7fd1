"""Small U-shaped segmentation network, trained with a light module/trainer split."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def blobs(count, size, classes, seed):
    g = torch.Generator().manual_seed(seed)
    ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    images = torch.randn(count, 1, size, size, generator=g) * 0.2
    masks = torch.zeros(count, size, size, dtype=torch.long)
    for i in range(count):
        for c in range(1, classes):
            cy, cx = torch.randint(6, size - 6, (2,), generator=g).tolist()
            inside = (ys - cy) ** 2 + (xs - cx) ** 2 < (3 + c) ** 2
            images[i, 0][inside] += 0.5 * c
            masks[i][inside] = c
    return TensorDataset(images, masks)


class UNetLite(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.head = nn.Conv2d(2 * width, classes, 1)

    def forward(self, x):
        a = self.enc(x)
        b = self.up(self.down(a))
        return self.head(torch.cat([a, b], dim=1))


class SegmentationModule:
    def __init__(self, net, classes, lr):
        self.net = net
        self.classes = classes
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
        self.validation_step_outputs = []

    def training_step(self, batch):
        images, masks = batch
        return F.cross_entropy(self.net(images), masks)

    def validation_step(self, batch):
        images, masks = batch
        logits = self.net(images)
        loss = F.cross_entropy(logits, masks)
        self.validation_step_outputs.append({"loss": loss, "logits": logits, "masks": masks})

    def on_validation_epoch_end(self):
        losses = torch.stack([o["loss"] for o in self.validation_step_outputs[-8:]])
        last = self.validation_step_outputs[-1]
        pixel_acc = (last["logits"].argmax(1) == last["masks"]).float().mean()
        stats = torch.stack([losses.mean(), pixel_acc])
        dist.all_reduce(stats)
        return (stats / dist.get_world_size()).tolist()


class Trainer:
    def __init__(self, max_epochs):
        self.max_epochs = max_epochs

    def fit(self, module, train_loader, val_loader, sampler):
        for epoch in range(self.max_epochs):
            sampler.set_epoch(epoch)
            module.net.train()
            for batch in train_loader:
                loss = module.training_step(batch)
                module.optimizer.zero_grad()
                loss.backward()
                module.optimizer.step()
            module.net.eval()
            with torch.no_grad():
                for batch in val_loader:
                    module.validation_step(batch)
            val_loss, acc = module.on_validation_epoch_end()
            if dist.get_rank() == 0:
                print(f"epoch {epoch:02d} train {loss.item():.4f} val {val_loss:.4f} acc {acc:.3f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--size", type=int, default=48)
    p.add_argument("--classes", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=3e-3)
    args = p.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train = blobs(512, args.size, args.classes, seed=1)
    val = blobs(512, args.size, args.classes, seed=2)
    sampler = DistributedSampler(train, seed=3)
    train_loader = DataLoader(train, args.batch_size, sampler=sampler)
    val_loader = DataLoader(val, args.batch_size, sampler=DistributedSampler(val, shuffle=False))

    net = DistributedDataParallel(UNetLite(args.classes))
    module = SegmentationModule(net, args.classes, args.lr)
    Trainer(args.epochs).fit(module, train_loader, val_loader, sampler)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
