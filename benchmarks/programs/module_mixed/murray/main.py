import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from state import AppState, LoopState, load, save

STEPS, HALF, BATCH = 20, 10, 16


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.b(F.silu(self.a(x)))


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp, self.out = nn.Linear(6, d), nn.Linear(d, 1)
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = b(h)
        return self.out(h)


def build(reshard):
    torch.manual_seed(3)
    model = Net()
    for b in model.blocks:
        fully_shard(b, reshard_after_forward=reshard)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return model, opt, torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, STEPS)


def batch(step):
    g = torch.Generator().manual_seed(step * 64 + dist.get_rank())
    x = torch.randn(BATCH, 6, generator=g)
    return x, (x[:, :1] * x[:, 1:2]).tanh()


def run(path, until, resume):
    model, opt, sched = build(reshard=not resume)
    app, loop = AppState(model, opt), LoopState(sched)
    if resume:
        load(path, app, loop)
    while loop.step < until:
        x, y = batch(loop.step)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        loop.step += 1
    shown = loss.detach().clone()
    dist.all_reduce(shown, op=dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"until {until} loss {shown.item():.5f} lr {sched.get_last_lr()[0]:.5f}", flush=True)
    save(path, app, loop)


def main():
    dist.init_process_group("cpu:gloo")
    box = [tempfile.mkdtemp(prefix="dcp_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    path = os.path.join(box[0], "app")
    run(path, HALF, resume=False)
    run(path, STEPS, resume=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
