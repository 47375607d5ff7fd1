"""Ticket routing classifier, data parallel."""
import argparse
import json
import sys
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from corpus import TicketCorpus, collate
from model import Encoder


@dataclass
class Args:
    epochs: int = 2
    batch: int = 8
    lr: float = 1e-3
    warmup: int = 8
    train_size: int = 256
    valid_size: int = 96
    seed: int = 5


def parse() -> Args:
    p = argparse.ArgumentParser()
    for key, value in asdict(Args()).items():
        p.add_argument("--" + key.replace("_", "-"), type=type(value), default=value)
    return Args(**vars(p.parse_args()))


def say(rank, **kw):
    if rank == 0:
        print(json.dumps(kw), flush=True)


def loaders(a, rank, world):
    train = TicketCorpus(a.train_size, seed=a.seed, outlier_every=200)
    valid = TicketCorpus(a.valid_size, seed=a.seed + 1)
    ts = DistributedSampler(train, world, rank, shuffle=True, seed=a.seed)
    vs = DistributedSampler(valid, world, rank, shuffle=False)
    return (DataLoader(train, a.batch, sampler=ts, collate_fn=collate),
            DataLoader(valid, 2 * a.batch, sampler=vs, collate_fn=collate))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    stats = torch.zeros(3)
    for ids, y in loader:
        logits = model.module(ids)
        stats += torch.tensor([F.cross_entropy(logits, y, reduction="sum").item(),
                               (logits.argmax(-1) == y).sum().item(), len(y)])
    parts = [torch.zeros_like(stats) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, stats)
    total = torch.stack(parts).sum(0)
    return (total[0] / total[2]).item(), (total[1] / total[2]).item()


def train_epoch(a, model, opt, sched, loader, epoch, rank):
    model.train()
    loader.sampler.set_epoch(epoch)
    skipped = 0
    for i, (ids, y) in enumerate(loader):
        opt.zero_grad(set_to_none=True)
        try:
            loss = F.cross_entropy(model(ids), y)
            loss.backward()
        except (RuntimeError, IndexError) as err:
            skipped += 1
            print(f"rank {rank}: batch {i} with shape {tuple(ids.shape)} skipped ({err})",
                  file=sys.stderr, flush=True)
            opt.zero_grad(set_to_none=True)
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if i % 4 == 0:
            say(rank, epoch=epoch, batch=i, loss=round(loss.item(), 4),
                lr=sched.get_last_lr()[0])
    return skipped


def main():
    a = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(a.seed)
    model = DistributedDataParallel(Encoder(120))
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.01)
    train, valid = loaders(a, rank, world)
    total = a.epochs * len(train)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / a.warmup) * max(0.05, 1 - s / total))
    say(rank, config=asdict(a), batches=len(train))
    for epoch in range(a.epochs):
        skipped = train_epoch(a, model, opt, sched, train, epoch, rank)
        loss, acc = validate(model, valid)
        say(rank, epoch=epoch, val_loss=round(loss, 4), val_acc=round(acc, 4), skipped=skipped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
