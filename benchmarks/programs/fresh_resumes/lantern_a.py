import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

STATE = "lantern_state.pt"


class Series(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(6)
        self.x = torch.randn(n, 24, 64, generator=g)
        self.y = torch.randn(n, 8, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(64, 192, batch_first=True)
        self.out = nn.Linear(192, 8)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[:, -1])


def save(model, opt, sched, epoch, batch):
    if dist.get_rank() == 0:
        torch.save(
            {"model": model.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(),
             "epoch": epoch, "batch": batch},
            STATE + ".tmp",
        )
        os.replace(STATE + ".tmp", STATE)
    dist.barrier()


def load(model, opt, sched):
    state = torch.load(STATE, map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    sched.load_state_dict(state["sched"])
    return state["epoch"], state["batch"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--stop_at", type=int, default=0)
    p.add_argument("--resume", action="store_true")
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Series(1536)
    sampler = DistributedSampler(data, shuffle=True, seed=1, drop_last=True)
    loader = DataLoader(data, batch_size=48, sampler=sampler, drop_last=True)
    model = DDP(Forecaster())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, 16, 0.9)
    first_epoch, done = 0, 0
    if args.resume:
        first_epoch, done = load(model, opt, sched)
    step = first_epoch * len(loader) + done
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            if epoch == first_epoch and i < done:
                continue
            opt.zero_grad(set_to_none=True)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if args.stop_at and step == args.stop_at:
                save(model, opt, sched, epoch, i + 1)
                dist.destroy_process_group()
                return
        if rank == 0:
            print("epoch", epoch, "steps", step, flush=True)
    save(model, opt, sched, args.epochs, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
