"""Mean-teacher consistency training with few labels (two moons in a noisy 12-d embedding)."""
import argparse
import math
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel as DDP


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    t = math.pi * torch.rand(n, generator=g)
    xy = torch.stack([torch.cos(t) + y * 1.0, torch.sin(t) * (1 - 2 * y) + 0.5 * y], 1)
    lift = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))
    return xy @ lift + 0.15 * torch.randn(n, 12, generator=g), y


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(12, width), nn.LayerNorm(width), nn.GELU())
        self.tail = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.2), nn.Linear(width, 2))

    def forward(self, x):
        return self.tail(self.stem(x))


class Teacher:
    """Averaged weights in a plain dict, run through functional_call."""

    def __init__(self, skeleton, decay):
        self.skeleton, self.decay = skeleton, decay
        self.weights = {k: v.detach().clone() for k, v in skeleton.named_parameters()}

    @torch.no_grad()
    def update(self, source):
        for k, v in source.named_parameters():
            self.weights[k].lerp_(v.detach(), 1 - self.decay)

    @torch.no_grad()
    def __call__(self, x):
        was = self.skeleton.training
        self.skeleton.eval()
        out = functional_call(self.skeleton, self.weights, (x,))
        self.skeleton.train(was)
        return out


def setup_models(args, rank):
    torch.manual_seed(args.seed + rank)
    net = Net(args.width)
    student = DDP(net)
    teacher = Teacher(net, args.decay)
    return student, teacher


def weak(x, gen):
    return x + 0.05 * torch.randn(x.shape, generator=gen)


def strong(x, gen):
    drop = torch.rand(x.shape, generator=gen) < 0.2
    return (x + 0.25 * torch.randn(x.shape, generator=gen)).masked_fill(drop, 0.0)


def ramp(step, length):
    return math.exp(-5 * (1 - min(1.0, step / length)) ** 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--labelled", type=int, default=32)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--decay", type=float, default=0.995)
    ap.add_argument("--weight", type=float, default=2.0)
    ap.add_argument("--seed", type=int, default=4)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = moons(4096, args.seed)
    xt, yt = moons(1000, args.seed + 1)
    student, teacher = setup_models(args, rank)
    opt = torch.optim.AdamW(student.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(1000 + 77 * rank)

    for step in range(1, args.steps + 1):
        perm = torch.randperm(len(x), generator=torch.Generator().manual_seed(args.seed * 10_000 + step))
        u = perm[rank::world][:args.batch]
        l = torch.randint(rank * args.labelled // world, (rank + 1) * args.labelled // world, (8,), generator=gen)
        target = teacher(weak(x[u], gen)).softmax(1)
        logits = student(torch.cat([x[l], strong(x[u], gen)]))
        sup = F.cross_entropy(logits[:8], y[l])
        cons = F.mse_loss(logits[8:].softmax(1), target)
        loss = sup + args.weight * ramp(step, args.steps / 2) * cons
        opt.zero_grad()
        loss.backward()
        opt.step()
        teacher.update(student.module)
        if step % 30 == 0:
            parts = torch.stack([sup.detach(), cons.detach()])
            dist.all_reduce(parts)
            if rank == 0:
                acc = (teacher(xt).argmax(1) == yt).float().mean()
                print(f"step {step} sup {parts[0] / world:.4f} cons {parts[1] / world:.4f} teacher acc {acc:.3f}", flush=True)
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save({"student": student.module.state_dict(), "teacher": teacher.weights}, args.out / "pair.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
