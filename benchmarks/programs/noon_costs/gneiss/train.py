import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from metrics import SegmentationMeter


class Tiles(Dataset):
    def __init__(self, n, classes, size=64):
        self.n, self.classes, self.size = n, classes, size
        g = torch.Generator().manual_seed(0)
        self.colour = torch.randn(classes, 3, generator=g)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        coarse = torch.randint(0, self.classes, (1, 1, 8, 8), generator=g).float()
        mask = F.interpolate(coarse, size=(self.size, self.size), mode="nearest")[0, 0].long()
        image = self.colour[mask].permute(2, 0, 1) + 0.4 * torch.randn(3, self.size, self.size, generator=g)
        return image, mask


class SmallFCN(nn.Module):
    def __init__(self, classes, c=16):
        super().__init__()
        def conv(i, o, s=1):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.GroupNorm(4, o), nn.ReLU())
        self.enc1 = conv(3, c)
        self.enc2 = conv(c, 2 * c, 2)
        self.enc3 = conv(2 * c, 4 * c, 2)
        self.dec2 = conv(6 * c, 2 * c)
        self.cls = nn.Conv2d(3 * c, classes, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(a)
        h = self.enc3(b)
        h = self.dec2(torch.cat([F.interpolate(h, scale_factor=2), b], 1))
        return self.cls(torch.cat([F.interpolate(h, scale_factor=2), a], 1))


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(8)
    model = DDP(SmallFCN(args.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    data = Tiles(args.samples, args.classes)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    meter = SegmentationMeter(args.classes)
    t0, it = time.time(), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        meter.reset()
        for image, mask in loader:
            logits = model(image)
            loss = F.cross_entropy(logits, mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.update(logits, mask)
            it += 1
        scores = meter.compute()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} acc {scores['acc']:.4f} miou {scores['miou']:.4f} "
                  f"{it / (time.time() - t0):.2f} it/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--classes", type=int, default=19)
    ap.add_argument("--samples", type=int, default=320)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--lr", type=float, default=0.05)
    main(ap.parse_args())
