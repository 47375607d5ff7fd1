import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class PhasePlan:
    """Per-group rates over one cycle: rise from zero, cosine down to zero, rest at zero, again.

    The encoder group sits out the first cycle; during a rest the normalisation statistics settle.
    """

    def __init__(self, optimizer, rise, fall, rest, encoder_from):
        self.optimizer = optimizer
        self.rise, self.fall, self.rest = rise, fall, rest
        self.period = rise + fall + rest
        self.encoder_from = encoder_from
        self.peaks = [g["lr"] for g in optimizer.param_groups]

    def shape(self, step):
        t = step % self.period
        if t < self.rise:
            return t / self.rise
        t -= self.rise
        if t < self.fall:
            return 0.5 * (1 + math.cos(math.pi * t / (self.fall - 1)))
        return 0.0

    def apply(self, step):
        scale = self.shape(step)
        for group, peak in zip(self.optimizer.param_groups, self.peaks):
            waits = group["role"] == "encoder" and step < self.encoder_from
            group["lr"] = 0.0 if waits else peak * scale


class Encoder(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, ch, 3, 1, 1), nn.BatchNorm2d(ch), nn.ReLU(),
            nn.Conv2d(ch, 2 * ch, 3, 2, 1), nn.BatchNorm2d(2 * ch), nn.ReLU(),
            nn.Conv2d(2 * ch, 2 * ch, 3, 2, 1), nn.BatchNorm2d(2 * ch), nn.ReLU())

    def forward(self, x):
        return self.net(x)


class Segmenter(nn.Module):
    def __init__(self, ch=24, classes=3):
        super().__init__()
        self.encoder = Encoder(ch)
        self.decoder = nn.Sequential(nn.Conv2d(2 * ch, 2 * ch, 3, 1, 1), nn.ReLU(),
                                     nn.ConvTranspose2d(2 * ch, classes, 4, 4))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def scenes(n=1280, size=32, seed=15):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    mask = torch.zeros(n, size, size, dtype=torch.long)
    for label in (1, 2):
        c = torch.rand(n, 2, 1, 1, generator=g) * 20 + 6
        r = torch.rand(n, 1, 1, generator=g) * 5 + 3
        mask[(yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2 < r ** 2] = label
    tone = torch.tensor([[0.0, 0.0, 0.0], [1.0, -0.5, 0.2], [-0.6, 0.8, 0.5]])
    x = tone[mask].permute(0, 3, 1, 2) + 0.9 * torch.randn(n, 3, size, size, generator=g)
    return TensorDataset(x, mask)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--encoder-lr", type=float, default=3e-3)
    ap.add_argument("--decoder-lr", type=float, default=8e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(54)
    net = Segmenter()
    model = DDP(net)
    opt = torch.optim.Adam([
        {"params": net.encoder.parameters(), "lr": args.encoder_lr, "role": "encoder"},
        {"params": net.decoder.parameters(), "lr": args.decoder_lr, "role": "decoder"}])
    data = scenes()
    sampler = DistributedSampler(data, world, rank, seed=41)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    plan = PhasePlan(opt, rise=5, fall=25, rest=5, encoder_from=35)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, mask in loader:
            plan.apply(step)
            logits = model(x)
            loss = F.cross_entropy(logits, mask)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
        iou = torch.tensor([((logits.argmax(1) == mask) & (mask > 0)).sum().item(), (mask > 0).sum().item()]).float()
        dist.all_reduce(iou)
        if rank == 0:
            rates = [f"{g['lr']:.1e}" for g in opt.param_groups]
            print(f"epoch {epoch} loss {loss.item():.4f} recall {iou[0] / iou[1]:.3f} rates {rates}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
