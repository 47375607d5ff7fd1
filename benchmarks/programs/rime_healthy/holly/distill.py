import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def conv_net(width, blocks):
    layers = [nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
    for _ in range(blocks):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(width * 4, 4))


def shapes(n, seed, size=12):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 4
    img = 0.3 * torch.randn(n, 1, size, size, generator=g)
    off = torch.randint(1, size - 5, (n, 2), generator=g)
    for i in range(n):
        r, c = off[i].tolist()
        patch = img[i, 0, r:r + 5, c:c + 5]
        if y[i] == 0:
            patch[2] += 1.0
        elif y[i] == 1:
            patch[:, 2] += 1.0
        elif y[i] == 2:
            patch += torch.eye(5)
        else:
            patch[[0, -1]] += 0.7
            patch[1:-1, [0, -1]] += 0.7
    return TensorDataset(img, y)


class Distiller(nn.Module):
    def __init__(self, student, teacher, temperature=3.0, alpha=0.7):
        super().__init__()
        self.student, self.T, self.alpha = student, temperature, alpha
        self.teacher = teacher.eval().requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x, y):
        s = self.student(x)
        with torch.no_grad():
            t = self.teacher(x)
        kd = F.kl_div(F.log_softmax(s / self.T, 1), F.softmax(t / self.T, 1), reduction="batchmean") * self.T ** 2
        return self.alpha * kd + (1 - self.alpha) * F.cross_entropy(s, y)


def fit(wrapped, loss_fn, loader, sampler, epochs, lr):
    opt = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=lr, total_steps=epochs * len(loader))
    wrapped.train()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = loss_fn(wrapped, x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        if dist.get_rank() == 0:
            print(f"  epoch {epoch} loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def accuracy(net, ds):
    net.eval()
    x, y = ds.tensors
    part = slice(dist.get_rank(), None, dist.get_world_size())
    hit = sum((net(a).argmax(1) == b).sum() for a, b in zip(x[part].split(128), y[part].split(128))).float()
    dist.all_reduce(hit)
    return hit.item() / len(ds)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--teacher-epochs", type=int, default=6)
    ap.add_argument("--student-epochs", type=int, default=24)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--out", default="out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train, test = shapes(1536, 1), shapes(512, 2)
    sampler = DistributedSampler(train, seed=5)
    loader = DataLoader(train, args.batch, sampler=sampler)

    teacher = conv_net(24, 2)
    fit(DDP(teacher), lambda m, x, y: F.cross_entropy(m(x), y), loader, sampler, args.teacher_epochs, 4e-3)
    t_acc = accuracy(teacher, test)

    student = conv_net(8, 1)
    dd = DDP(Distiller(student, teacher))
    fit(dd, lambda m, x, y: m(x, y), loader, sampler, args.student_epochs, 8e-3)
    s_acc = accuracy(student, test)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(student.state_dict(), os.path.join(args.out, "student.pt"))
        print(f"teacher {t_acc:.3f} student {s_acc:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
