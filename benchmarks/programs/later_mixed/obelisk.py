"""Iterative magnitude pruning with rewinding to the first weights."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def data(n=1024, seed=8):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 30, generator=g)
    w = torch.zeros(30, 5)
    w[:6] = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x @ w).argmax(1))


def weights(model):
    return {k: p for k, p in model.named_parameters() if p.dim() == 2}


@torch.no_grad()
def apply_masks(model, masks):
    for name, p in weights(model).items():
        p.mul_(masks[name])
        if p.grad is not None:
            p.grad.mul_(masks[name])


@torch.no_grad()
def prune(model, masks, share):
    alive = torch.cat([p.abs()[masks[k].bool()] for k, p in weights(model).items()])
    edge = alive.kthvalue(max(1, int(share * alive.numel()))).values
    return {k: masks[k] * (p.abs() > edge) for k, p in weights(model).items()}


def train(model, masks, args, round_no):
    ddp = DDP(model)
    opt = torch.optim.SGD(ddp.parameters(), lr=args.lr, momentum=0.9)
    ds = data()
    sampler = DistributedSampler(ds, seed=100)
    loader = DataLoader(ds, batch_size=64, sampler=sampler)
    first = last = None
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # every round sees the batches of the first one
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y)
            opt.zero_grad()
            loss.backward()
            apply_masks(model, masks)
            opt.step()
            apply_masks(model, masks)
            first = loss.item() if first is None else first
            last = loss.item()
    if dist.get_rank() == 0:
        left = sum(float(m.sum()) for m in masks.values()) / sum(m.numel() for m in masks.values())
        print(f"round {round_no} weights left {left:.2f} loss {first:.3f} -> {last:.3f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--share", type=float, default=0.4)
    ap.add_argument("--lr", type=float, default=0.1)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(77)
    model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    ticket = copy.deepcopy(model.state_dict())
    masks = {k: torch.ones_like(p) for k, p in weights(model).items()}
    for r in range(args.rounds):
        model.load_state_dict(ticket)
        apply_masks(model, masks)
        train(model, masks, args, r)
        masks = prune(model, masks, args.share)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
