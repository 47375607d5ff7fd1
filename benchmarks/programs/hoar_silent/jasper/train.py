import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def conv_net():
    def block(i, o):
        return nn.Sequential(nn.Conv1d(i, o, 5, padding=2), nn.GroupNorm(4, o), nn.ReLU(), nn.MaxPool1d(2))
    return nn.Sequential(block(2, 16), block(16, 32), block(32, 32), nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(64, 6))


def signals(n=1500, t=64):
    g = torch.Generator().manual_seed(2)
    y = torch.randint(0, 6, (n,), generator=g)
    phase = torch.rand(n, 1, generator=g) * 6.28
    time = torch.arange(t)[None] / t * 6.28
    a = torch.sin(time * (y[:, None] + 1) + phase)
    b = torch.cos(time * (y[:, None] + 1) + phase)
    return TensorDataset(torch.stack([a, b], 1) + 0.8 * torch.randn(n, 2, t, generator=g), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=25)
    ap.add_argument("--max-lr", type=float, default=5e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(conv_net())
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=args.max_lr, weight_decay=0.01)
    data = signals()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.max_lr, total_steps=args.epochs * len(loader), cycle_momentum=False)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        stat = torch.zeros(2)
        for x, y in loader:
            out = model(x)
            loss = criterion(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            stat += torch.tensor([loss.item(), (out.argmax(1) == y).float().mean().item()])
        stat /= len(loader)
        dist.all_reduce(stat)
        stat /= dist.get_world_size()
        opt.consolidate_state_dict(to=0)
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, "ckpt.pt")
            print(f"epoch {epoch} loss {stat[0]:.4f} acc {stat[1]:.3f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
