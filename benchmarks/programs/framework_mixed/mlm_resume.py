"""Masked-token toy training that can be continued: first run trains to --stop-after, second goes on with --resume."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CKPT = "mlm_ckpt/state.pt"


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--stop-after", type=int, default=None)
    p.add_argument("--resume", action="store_true")
    p.add_argument("--lr", type=float, default=2e-3)
    return p.parse_args()


def make_optimizer(model, lr):
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=lr)


def make_schedule(opt, total):
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20) * max(0.05, 1 - s / total))


def save(model, opt, sched, epoch):
    os.makedirs(os.path.dirname(CKPT), exist_ok=True)
    state = {"model": model.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "epoch": epoch}
    torch.save(state, CKPT + ".tmp")
    os.replace(CKPT + ".tmp", CKPT)


def restore(model, opt, sched):
    state = torch.load(CKPT, map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    sched.load_state_dict(state["sched"])
    return state["epoch"] + 1


def corpus():
    g = torch.Generator().manual_seed(4)
    ids = (torch.randint(0, 40, (320, 1), generator=g) + torch.arange(12) * 3) % 40
    return TensorDataset(ids)


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(41, 48), nn.Flatten(), nn.Linear(48 * 12, 128), nn.GELU(), nn.Linear(128, 40))
    model = DDP(net)
    ds = corpus()
    sampler = DistributedSampler(ds, seed=3)
    loader = DataLoader(ds, 16, sampler=sampler, drop_last=True)
    total = args.epochs * len(loader)
    opt = make_optimizer(model, args.lr)
    sched = make_schedule(opt, total)
    first = 0
    if args.resume and os.path.exists(CKPT):
        first = restore(model, opt, sched)
        opt = make_optimizer(model, opt.param_groups[0]["lr"])
        sched = make_schedule(opt, total)
        if rank == 0:
            print(f"continuing with epoch {first}", flush=True)
    last = args.stop_after or args.epochs
    for epoch in range(first, last):
        sampler.set_epoch(epoch)
        for (ids,) in loader:
            target = ids[:, 6].clone()
            masked = ids.clone()
            masked[:, 6] = 40
            loss = nn.functional.cross_entropy(model(masked), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
            save(model, opt, sched, epoch)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
