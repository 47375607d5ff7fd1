"""Adapter fine-tuning of a frozen sentence encoder with DistributedDataParallel."""
import argparse
import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lora import adapter_state, add_adapters, freeze_backbone, trainable_parameters
from modeling import load_pretrained


class Reviews(Dataset):
    """Token sequences whose label depends on the counts of four keyword groups."""

    def __init__(self, size, seed, vocab=200, length=20):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, vocab, (size, length), generator=g)
        votes = torch.stack([((self.ids // 5) % 4 == c).sum(1) for c in range(4)], dim=1).float()
        self.labels = (votes + 0.1 * torch.rand(votes.shape, generator=g)).argmax(1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"ids": self.ids[i], "label": self.labels[i]}


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def get_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--weight-decay", type=float, default=0.01)
    p.add_argument("--lora-rank", type=int, default=8)
    p.add_argument("--lora-alpha", type=float, default=16.0)
    p.add_argument("--lora-targets", nargs="+", default=["query", "value", "expand"])
    p.add_argument("--seed", type=int, default=5)
    p.add_argument("--output", default="runs/delos")
    return p.parse_args()


def build_model(args):
    model = load_pretrained()
    freeze_backbone(model)
    return model


def wrap(model, args):
    model = DDP(model)
    names = add_adapters(model.module, args.lora_targets, args.lora_rank, args.lora_alpha)
    if dist.get_rank() == 0:
        print(f"adapters on {len(names)} layers, "
              f"{sum(p.numel() for _, p in trainable_parameters(model))} trainable parameters")
    return model


def build_optimizer(model, args):
    named = trainable_parameters(model)
    groups = [
        {"params": [p for n, p in named if p.ndim > 1], "weight_decay": args.weight_decay},
        {"params": [p for n, p in named if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.lr)


@torch.no_grad()
def evaluate(model, dataset, batch_size):
    model.eval()
    rank, world = dist.get_rank(), dist.get_world_size()
    tally = torch.zeros(3, dtype=torch.float64)
    mine = range(rank, len(dataset), world)
    for batch in DataLoader(dataset, batch_size=batch_size, sampler=list(mine)):
        logits = model.module(batch["ids"])
        tally[0] += F.cross_entropy(logits, batch["label"], reduction="sum")
        tally[1] += (logits.argmax(-1) == batch["label"]).sum()
        tally[2] += len(batch["label"])
    dist.all_reduce(tally)
    model.train()
    return (tally[0] / tally[2]).item(), (tally[1] / tally[2]).item()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    set_seed(args.seed + rank)
    model = wrap(build_model(args), args)
    optimizer = build_optimizer(model, args)
    train, valid = Reviews(1600, seed=1), Reviews(403, seed=2)
    sampler = DistributedSampler(train, shuffle=True, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * len(loader), pct_start=0.2)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running, seen = 0.0, 0
        for batch in loader:
            loss = F.cross_entropy(model(batch["ids"]), batch["label"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for _, p in trainable_parameters(model)], 1.0)
            optimizer.step()
            scheduler.step()
            running += loss.item()
            seen += 1
        val_loss, val_acc = evaluate(model, valid, args.batch_size)
        if rank == 0:
            print(f"epoch {epoch}: train {running / seen:.4f} valid {val_loss:.4f} accuracy {val_acc:.4f}", flush=True)
    if rank == 0:
        os.makedirs(args.output, exist_ok=True)
        torch.save(adapter_state(model.module), os.path.join(args.output, "adapter.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
