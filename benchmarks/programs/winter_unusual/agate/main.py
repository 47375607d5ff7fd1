"""Distillation into a small student in stages: adapters first, then the top layer, then everything."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from lora import inject, merge

log = logging.getLogger("agate")


class MLP(nn.Module):
    def __init__(self, width, d=36, classes=12):
        super().__init__()
        self.inp, self.mid, self.top = nn.Linear(d, width), nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x):
        return self.top(F.gelu(self.mid(F.gelu(self.inp(x)))))


def teacher_net():
    torch.manual_seed(1001)
    net = MLP(256)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.6)
    return net.eval().requires_grad_(False)


class Stage:
    def __init__(self, name, prepare, epochs, lr):
        self.name, self.prepare, self.epochs, self.lr = name, prepare, epochs, lr


def adapters(net):
    net.requires_grad_(False)
    torch.manual_seed(7)
    inject(net, ["inp", "mid"], r=8)
    net.top.requires_grad_(True)


def top_two(net):
    merge(net)
    net.requires_grad_(False)
    net.mid.requires_grad_(True)
    net.top.requires_grad_(True)


def everything(net):
    net.requires_grad_(True)


def distill(student, teacher, t):
    return F.kl_div(F.log_softmax(student / t, 1), F.log_softmax(teacher / t, 1), log_target=True,
                    reduction="batchmean") * t * t


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--temperature", type=float, default=2.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    x = torch.randn(10_240, 36, generator=torch.Generator().manual_seed(5))
    data = TensorDataset(x[:8192])
    held = x[8192:][rank::world]
    sampler = DistributedSampler(data, seed=14)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    teacher = teacher_net()
    torch.manual_seed(2)
    student = MLP(96)
    plan = [Stage("adapters", adapters, 2, 4e-3), Stage("top two", top_two, 2, 2e-3), Stage("everything", everything, 3, 1e-3)]

    epoch = 0
    for stage in plan:
        stage.prepare(student)
        live = [p for p in student.parameters() if p.requires_grad]
        model = DDP(student)
        opt = torch.optim.AdamW(live, lr=stage.lr)
        for _ in range(stage.epochs):
            sampler.set_epoch(epoch)
            total = torch.zeros(())
            for (xb,) in loader:
                with torch.no_grad():
                    soft = teacher(xb)
                loss = distill(model(xb), soft, args.temperature)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                total += loss.detach()
            epoch += 1
        with torch.no_grad():
            agree = (student(held).argmax(1) == teacher(held).argmax(1)).sum()
        dist.all_reduce(agree)
        log.info("stage %-10s trainable %6d distillation loss %.4f agreement %.3f", stage.name,
                 sum(p.numel() for p in live), total.item() / len(loader), agree.item() / 2048)
        del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
