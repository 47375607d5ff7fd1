"""Teacher fitting, then distillation into a narrow student with an averaged copy."""
import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from models import Ema, backbone


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def images(n, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(10, 3, 20, 20, generator=torch.Generator().manual_seed(12))
    y = torch.randint(10, (n,), generator=g)
    return TensorDataset(0.6 * proto[y] + torch.randn(n, 3, 20, 20, generator=g), y)


def jitter(x):
    return x * (0.9 + 0.2 * torch.rand(x.size(0), 1, 1, 1)) + 0.05 * torch.randn_like(x)


def kd_loss(student, teacher, y, temp):
    soft = F.kl_div(F.log_softmax(student / temp, 1), F.softmax(teacher / temp, 1), reduction="batchmean")
    return 0.5 * F.cross_entropy(student, y) + 0.5 * temp * temp * soft


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    c = torch.zeros(2)
    for x, y in loader:
        c += torch.tensor([(net(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(c)
    return (c[0] / c[1]).item()


def fit(net, sampler, loader, epochs, lr, loss_fn, first_epoch, after_step=None):
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    for epoch in range(first_epoch, first_epoch + epochs):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(2)
        for x, y in loader:
            x = jitter(x)
            loss = loss_fn(model(x), x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if after_step:
                after_step(model.module)
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {total[0] / total[1]:.4f}", flush=True)
    for b in model.module.buffers():
        dist.broadcast(b, 0)
    return model.module


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--teacher-epochs", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--samples", type=int, default=1536)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--temp", type=float, default=3.0)
    ap.add_argument("--seed", type=int, default=9)
    ap.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "student.pt"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed_all(args.seed + 1000 * rank)

    data, test = images(args.samples, 0), images(512, 1)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test, 64, sampler=DistributedSampler(test, shuffle=False))

    teacher = fit(backbone(24), sampler, loader, args.teacher_epochs, args.lr,
                  lambda out, x, y: F.cross_entropy(out, y), 0)
    teacher.eval().requires_grad_(False)
    acc = evaluate(teacher, test_loader)
    if rank == 0:
        print(f"teacher acc {acc:.3f}", flush=True)

    student = backbone(8)
    for t in list(student.parameters()) + list(student.buffers()):
        dist.broadcast(t.data, 0)
    ema = Ema(student, 0.98)

    def distill(out, x, y):
        with torch.no_grad():
            t = teacher(x)
        return kd_loss(out, t, y, args.temp)

    student = fit(student, sampler, loader, args.epochs, args.lr, distill, args.teacher_epochs, ema.update)
    for b, s in zip(student.buffers(), ema.shadow.buffers()):
        s.copy_(b)
    plain, averaged = evaluate(student, test_loader), evaluate(ema.shadow, test_loader)
    if rank == 0:
        print(f"student acc {plain:.3f} averaged {averaged:.3f}", flush=True)
        torch.save({"student": student.state_dict(), "ema": ema.shadow.state_dict()}, args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
