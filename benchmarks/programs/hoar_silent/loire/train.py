import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from models import Student, set_trainable, teacher


def dataset(n=1600, dim=30, classes=5):
    g = torch.Generator().manual_seed(6)
    x = torch.randn(n, dim, generator=g)
    w1, w2 = torch.randn(dim, 16, generator=g), torch.randn(16, classes, generator=g)
    return TensorDataset(x, (torch.tanh(x @ w1) @ w2).argmax(1))


def fit_teacher(ds, steps):
    """Every rank trains the same teacher from the same seed, then it is checked against rank 0."""
    torch.manual_seed(123)
    net = teacher()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(124)
    for _ in range(steps):
        idx = torch.randint(0, len(ds), (128,), generator=g)
        loss = F.cross_entropy(net(ds.tensors[0][idx]), ds.tensors[1][idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    set_trainable(net, False)
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    return net.eval()


def distill(student_out, teacher_out, y, T=3.0, alpha=0.7):
    soft = F.kl_div(F.log_softmax(student_out / T, -1), F.softmax(teacher_out / T, -1), reduction="batchmean") * T * T
    return alpha * soft + (1 - alpha) * F.cross_entropy(student_out, y)


def phase(net, lr):
    """A new wrapper per phase: the reducer only knows the parameters that were trainable at wrap time."""
    model = DDP(net)
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=lr)
    return model, opt


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--unfreeze-at", type=int, default=2)
    ap.add_argument("--batch", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ds = dataset()
    big = fit_teacher(ds, 80)
    torch.manual_seed(1)
    net = Student()
    set_trainable(net.body, False)
    model, opt = phase(net, 3e-3)
    sampler = DistributedSampler(ds, seed=9)
    loader = DataLoader(ds, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        if epoch == args.unfreeze_at:
            set_trainable(net.body, True)
            model, opt = phase(net, 1e-3)
        sampler.set_epoch(epoch)
        stat = torch.zeros(2)
        for x, y in loader:
            with torch.no_grad():
                target = big(x)
            out = model(x)
            loss = distill(out, target, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            stat += torch.tensor([loss.item(), (out.argmax(1) == target.argmax(1)).float().mean().item()])
        dist.all_reduce(stat)
        stat /= len(loader) * dist.get_world_size()
        if rank == 0:
            print(f"epoch {epoch} loss {stat[0]:.4f} agreement {stat[1]:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
