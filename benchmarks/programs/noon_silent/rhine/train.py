"""Gauge-level forecasting with a temporal conv net; runs in two legs with a checkpoint between them."""
import argparse
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from checkpoint import CheckpointManager


class GaugeSeries(Dataset):
    def __init__(self, n, channels=8, window=64, seed=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(window + 1).float()
        freq = torch.rand(n, channels, 1, generator=g) * 0.3 + 0.05
        phase = torch.rand(n, channels, 1, generator=g) * 6.28
        trend = torch.randn(n, channels, 1, generator=g) * 0.01
        x = torch.sin(freq * t + phase) + trend * t
        x[:, 0] += 0.5 * x[:, 1].roll(3, -1)
        self.x = x + 0.05 * torch.randn(x.shape, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i, :, :-1], self.x[i, :, -1]


class CausalBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(width, width * 2, 3, dilation=dilation)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.pad, 0))).chunk(2, 1)
        return self.norm(x + torch.tanh(a) * torch.sigmoid(b))


class GaugeNet(nn.Module):
    def __init__(self, channels=8, width=48, depth=4):
        super().__init__()
        self.inp = nn.Conv1d(channels, width, 1)
        self.blocks = nn.Sequential(*[CausalBlock(width, 2 ** i) for i in range(depth)])
        self.out = nn.Linear(width, channels)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x))[:, :, -1])


def build(args):
    torch.manual_seed(args.seed)
    model = GaugeNet()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.995)
    return model, opt, sched


def run_leg(args, ds, manager, until, resume):
    model, opt, sched = build(args)
    step = manager.restore(model, opt, sched) if resume else 0
    ddp = DDP(model)
    sampler = DistributedSampler(ds, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)
    while step < until:
        sampler.set_epoch(step // len(loader))
        for x, y in loader:
            loss = F.smooth_l1_loss(ddp(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 20 == 0:
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                if dist.get_rank() == 0:
                    print(f"step {step} loss {mean.item() / dist.get_world_size():.5f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
            if step >= until:
                break
    manager.save(model, opt, sched, step)
    return model


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--first-leg", type=int, default=64)
    ap.add_argument("--second-leg", type=int, default=160)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=5)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    where = [tempfile.mkdtemp(prefix="gauge_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where, src=0)
    manager = CheckpointManager(where[0])
    ds = GaugeSeries(2048)

    run_leg(args, ds, manager, args.first_leg, resume=False)
    model = run_leg(args, ds, manager, args.second_leg, resume=True)

    if dist.get_rank() == 0:
        shutil.rmtree(where[0])
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    final = main()
