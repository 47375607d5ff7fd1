import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from probes import ActivationProbe


class Blobs(Dataset):
    """Round bright cells on a noisy ground, with their masks."""

    def __init__(self, n=256, size=96):
        self.n, self.size = n, size
        ax = torch.arange(size, dtype=torch.float32)
        self.grid = torch.stack(torch.meshgrid(ax, ax, indexing="ij"))
        self.pairs = [self.draw(i) for i in range(n)]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.pairs[i]

    def draw(self, i):
        g = torch.Generator().manual_seed(10_000 + i)
        centre = torch.rand(2, 1, 1, generator=g) * self.size
        radius = 6 + 8 * torch.rand(1, generator=g)
        mask = ((self.grid - centre).norm(dim=0) < radius).float()
        image = mask + 0.5 * torch.randn(self.size, self.size, generator=g)
        return image[None], mask[None]


class SmallUNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(c, 2 * c, 3, stride=2, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(2 * c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, 1, 1))

    def forward(self, x):
        a = self.down1(x)
        b = self.up(self.down2(a))
        return self.out(torch.cat([a, b], 1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--report-every", type=int, default=8)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = SmallUNet()
    probe = ActivationProbe(net, nn.ReLU)
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = Blobs()
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler)
    it = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for image, mask in loader:
            loss = F.binary_cross_entropy_with_logits(model(image), mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if it % args.report_every == 0 and dist.get_rank() == 0:
                dead = {k: round(v[2], 3) for k, v in probe.summary().items()}
                print(f"it {it} loss {loss.item():.4f} zeros {dead}", flush=True)
            it += 1
    probe.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
