import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

OUT = Path.cwd() / "out_zero_state"


def make_data():
    g = torch.Generator().manual_seed(29)
    x = torch.randn(640, 24, generator=g)
    return TensorDataset(x, x[:, :8].abs().argmax(1))


def save(path, model, opt, sched, epoch, rank):
    opt.consolidate_state_dict(to=0)
    if rank == 0:
        tmp = path.with_suffix(".tmp")
        torch.save(
            {"model": model.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "epoch": epoch}, tmp
        )
        tmp.rename(path)
    dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--resume", action="store_true")
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        if not args.resume:
            shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir(exist_ok=True)
    dist.barrier()
    torch.manual_seed(14)
    model = DDP(nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 8)))
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * 2)
    start = 0
    if args.resume:
        state = torch.load(OUT / "last.pt", map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        sched.load_state_dict(state["sched"])
        start = state["epoch"]
    data = make_data()
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=4)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(start, start + args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        save(OUT / "last.pt", model, opt, sched, epoch + 1, rank)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
