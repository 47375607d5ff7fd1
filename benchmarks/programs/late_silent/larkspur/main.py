"""Kernel-feature classifier whose checkpoints are written by a forked child.

The child sees the memory as it was at the fork (copy on write), the parent goes on at once.
"""
import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def rings(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    r = 1 + y + 0.25 * torch.randn(n, generator=g)
    a = 6.2832 * torch.rand(n, generator=g)
    return torch.stack([r * a.cos(), r * a.sin()], 1), y


class FourierNet(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.freq = nn.Linear(2, features)
        self.mid = nn.Linear(features, features)
        self.out = nn.Linear(features, classes)

    def forward(self, x):
        return self.out(torch.relu(self.mid(torch.cos(self.freq(x)))))


class ForkSaver:
    def __init__(self, folder):
        self.folder, self.child = folder, None
        folder.mkdir(parents=True, exist_ok=True)

    def wait(self):
        if self.child is not None:
            _, status = os.waitpid(self.child, 0)
            if status:
                raise RuntimeError(f"writer ended with {status}")
            self.child = None

    def save(self, step, model, opt):
        self.wait()
        views = {f"w/{k}": v.detach().numpy() for k, v in model.named_parameters()}
        for i, s in enumerate(opt.state.values()):
            views.update({f"opt/{i}/{k}": v.numpy() for k, v in s.items()})
        target = self.folder / f"{step:05d}.npz"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                tmp = target.with_suffix(".part")
                with open(tmp, "wb") as fh:
                    np.savez(fh, step=np.int64(step), **views)
                os.replace(tmp, target)
                code = 0
            finally:
                os._exit(code)
        self.child = pid


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--every", type=int, default=30)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--features", type=int, default=192)
    ap.add_argument("--seed", type=int, default=23)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    x, y = rings(4096, args.seed)
    net = DDP(FourierNet(args.features, 3))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    saver = ForkSaver(args.out) if rank == 0 else None

    for step in range(1, args.steps + 1):
        g = torch.Generator().manual_seed(args.seed * 1009 + step)
        mine = torch.randperm(len(x), generator=g)[rank * args.batch:(rank + 1) * args.batch]
        logits = net(x[mine])
        loss = F.cross_entropy(logits, y[mine])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.every == 0:
            both = torch.stack([loss.detach(), (logits.argmax(1) == y[mine]).float().mean()])
            dist.all_reduce(both)
            if saver is not None:
                saver.save(step, net.module, opt)
                print(f"step {step} loss {both[0] / world:.4f} acc {both[1] / world:.3f}", flush=True)
    if saver is not None:
        saver.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
