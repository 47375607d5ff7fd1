"""Mean teacher on few labels. Batch-norm statistics are left to each rank while training."""
import argparse
import copy
import logging
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from norms import pool_running_stats


def conv(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride=s, padding=1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.1))


class Net(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.body = nn.Sequential(conv(1, 16), conv(16, 32, 2), conv(32, 32), conv(32, 48, 2))
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def shapes(n, seed):
    g = torch.Generator().manual_seed(seed)
    base = F.interpolate(torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(7)), size=16, mode="bilinear")
    y = torch.randint(0, 6, (n,), generator=g)
    x = base[y] * (0.6 + torch.rand(n, 1, 1, 1, generator=g)) + torch.randn(n, 1, 16, 16, generator=g) * 0.8
    return x, y


def jitter(x, gen):
    gain = 1 + 0.2 * torch.randn(len(x), 1, 1, 1, generator=gen)
    return torch.roll(x, torch.randint(-2, 3, (1,), generator=gen).item(), dims=3) * gain + 0.15 * torch.randn(x.shape, generator=gen)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(10)
    student = DDP(Net(), broadcast_buffers=False)
    teacher = copy.deepcopy(student.module).requires_grad_(False)
    opt = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    xl, yl = shapes(240, 1)
    xu, _ = shapes(4000, 2)
    xl, yl, xu = xl[rank::world], yl[rank::world], xu[rank::world]
    gen = torch.Generator().manual_seed(200 + rank)

    for step in range(args.steps):
        for g in opt.param_groups:
            g["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        ramp = math.exp(-5 * (1 - min(1.0, step / 40)) ** 2)
        il = torch.randint(0, len(xl), (args.batch // 2,), generator=gen)
        iu = torch.randint(0, len(xu), (args.batch,), generator=gen)
        both = torch.cat([xl[il], xu[iu]])
        out = student(jitter(both, gen))
        with torch.no_grad():
            target = teacher(jitter(both, gen)).softmax(1)
        loss = F.cross_entropy(out[:len(il)], yl[il]) + 8.0 * ramp * (out.softmax(1) - target).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay = min(1 - 1 / (step + 1), 0.97)
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.module.parameters()):
                t.lerp_(s, 1 - decay)
        if step % 20 == 0:
            own = torch.stack([b.norm() for n, b in teacher.named_buffers() if n.endswith("running_var")]).sum()
            norms = [torch.empty_like(own) for _ in range(world)]
            dist.all_gather(norms, own)
            logging.info("step %d loss %.4f teacher running var by rank %s", step, loss.item(), [round(v.item(), 3) for v in norms])

    pool_running_stats(student.module)
    pool_running_stats(teacher)
    teacher.eval()
    xt, yt = shapes(1200, 3)
    with torch.no_grad():
        right = (teacher(xt[rank::world]).argmax(1) == yt[rank::world]).sum()
    dist.all_reduce(right)
    state = torch.cat([v.reshape(-1).double() for v in teacher.state_dict().values()])
    every = [torch.empty_like(state) for _ in range(world)]
    dist.all_gather(every, state)
    logging.info("teacher accuracy %.4f, states apart by %.3g", right / len(xt), max((e - state).abs().max().item() for e in every))
    if rank == 0:
        out = args.out or tempfile.mkdtemp(prefix="teacher-")
        os.makedirs(out, exist_ok=True)
        torch.save(teacher.state_dict(), os.path.join(out, "teacher.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
