import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class ConvEncoder(nn.Module):
    def __init__(self, ch=24, out=64):
        super().__init__()
        layers, cin = [], 3
        for i, c in enumerate((ch, ch * 2, ch * 2, ch * 4)):
            layers += [nn.Conv2d(cin, c, 3, 2 if i % 2 else 1, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU()]
            cin = c
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.proj = nn.Sequential(nn.Linear(cin, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, out))

    def forward(self, x):
        return self.proj(self.body(x))


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = ConvEncoder()
        self.predictor = nn.Sequential(nn.Linear(64, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, a, b):
        pa, pb = self.predictor(self.encoder(torch.cat([a, b]))).chunk(2)
        return pa, pb


class Teacher:
    def __init__(self, encoder, momentum):
        self.net = copy.deepcopy(encoder).requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def __call__(self, a, b):
        ta, tb = self.net(torch.cat([a, b])).chunk(2)
        return ta, tb

    @torch.no_grad()
    def follow(self, encoder):
        for t, s in zip(self.net.parameters(), encoder.parameters()):
            t.lerp_(s, 1 - self.momentum)

    @torch.no_grad()
    def share_statistics(self):
        buffers = [b for b in self.net.buffers() if b.is_floating_point()]
        flat = torch.cat([b.reshape(-1) for b in buffers])
        dist.broadcast(flat, src=0)
        offset = 0
        for b in buffers:
            b.copy_(flat[offset:offset + b.numel()].view_as(b))
            offset += b.numel()


def augment(x, g):
    flip = torch.rand(len(x), generator=g) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(3), x)
    gain = 0.7 + 0.6 * torch.rand(len(x), 1, 1, 1, generator=g)
    return x * gain + 0.1 * torch.randn(x.shape, generator=g)


def images(n=1536, size=28, seed=4):
    g = torch.Generator().manual_seed(seed)
    low = torch.randn(n, 3, 5, 5, generator=g)
    return TensorDataset(F.interpolate(low, size=size, mode="bilinear", align_corners=False))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--momentum", type=float, default=0.97)
    ap.add_argument("--lr", type=float, default=0.04)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(45)
    student = Student()
    teacher = Teacher(student.encoder, args.momentum)
    model = DDP(student)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    data = images()
    sampler = DistributedSampler(data, world, rank, seed=14)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    g = torch.Generator().manual_seed(700 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            a, b = augment(x, g), augment(x, g)
            ta, tb = teacher(a, b)
            pa, pb = model(a, b)
            loss = 2 - F.cosine_similarity(pa, tb).mean() - F.cosine_similarity(pb, ta).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            teacher.follow(student.encoder)
            teacher.share_statistics()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
