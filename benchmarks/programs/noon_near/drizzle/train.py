import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class StageScaler:
    """Loss scale of one pipeline stage. Every stage moves its own value; the verdict is shared."""

    def __init__(self, init_scale, interval, ceiling):
        self.scale, self.interval, self.ceiling, self.clean = init_scale, interval, ceiling, 0

    def found_inf(self, grads):
        flag = torch.zeros(1)
        for g in grads:
            flag.clamp_(min=float(not torch.isfinite(g).all()))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def update(self, found):
        if found:
            self.scale, self.clean = self.scale / 2, 0
        else:
            self.clean += 1
            if self.clean % self.interval == 0:
                self.scale = min(self.scale * 2, self.ceiling)


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 3 * dim)
        self.fc2 = nn.Linear(3 * dim, dim)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class FrameData:
    def __init__(self, seed, frames=12, mels=40, classes=10):
        self.g = torch.Generator().manual_seed(seed)
        self.proto = torch.randn(classes, frames * mels, generator=self.g)
        self.classes = classes

    def batch(self, n):
        y = torch.randint(0, self.classes, (n,), generator=self.g)
        return self.proto[y] + 2.5 * torch.randn(n, self.proto.shape[1], generator=self.g), y


def half_(params):
    return [p.grad.half() for p in params]


def run(args):
    rank = dist.get_rank()
    torch.manual_seed(50 + rank)
    dim = args.dim
    if rank == 0:
        stage = nn.Sequential(nn.Linear(480, dim), *[Residual(dim) for _ in range(3)])
        scaler = StageScaler(2.0 ** 18, 10, 2.0 ** 26)
    else:
        stage = nn.Sequential(*[Residual(dim) for _ in range(3)], nn.LayerNorm(dim), nn.Linear(dim, 10))
        scaler = StageScaler(2.0 ** 12, 20, 2.0 ** 22)
    params = list(stage.parameters())
    opt = torch.optim.AdamW(params, lr=args.lr)
    data = FrameData(9)
    micro = args.batch_size // args.chunks
    skipped = 0

    for step in range(args.steps):
        x, y = data.batch(args.batch_size)
        opt.zero_grad(set_to_none=True)
        total = torch.zeros(1)
        if rank == 0:
            outs, sends = [], []
            for c in x.split(micro):
                out = stage(c)
                outs.append(out)
                sends.append(dist.isend(out.detach().contiguous(), dst=1))
            for out in outs:
                grad = torch.empty_like(out)
                dist.recv(grad, src=1)
                out.backward(grad * scaler.scale)
            for s in sends:
                s.wait()
        else:
            for target in y.split(micro):
                h = torch.empty(micro, dim)
                dist.recv(h, src=0)
                h.requires_grad_(True)
                loss = F.cross_entropy(stage(h), target) / args.chunks
                (loss * scaler.scale).backward()
                dist.send(h.grad / scaler.scale, dst=0)
                total += loss.detach()

        halves = half_(params)
        found = scaler.found_inf(halves)
        if found:
            skipped += 1
        else:
            for p, h in zip(params, halves):
                p.grad = h.float() / scaler.scale
            opt.step()
        scaler.update(found)
        if rank == 1 and step % 20 == 0:
            print(f"step {step:3d} loss {total.item():.4f} scale {scaler.scale:.0f}", flush=True)
    print(f"stage {rank}: scale {scaler.scale:.0f}, skipped {skipped}/{args.steps}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--lr", type=float, default=4e-4)
    ns = parser.parse_args()
    dist.init_process_group("gloo")
    run(ns)
    dist.destroy_process_group()
