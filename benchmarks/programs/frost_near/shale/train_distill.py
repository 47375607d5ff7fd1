import argparse
import math
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--num_epochs", type=int, default=4)
    p.add_argument("--per_device_batch", type=int, default=16)
    p.add_argument("--gradient_accumulation_steps", type=int, default=4)
    p.add_argument("--learning_rate", type=float, default=4e-3)
    p.add_argument("--warmup_ratio", type=float, default=0.1)
    p.add_argument("--temperature", type=float, default=2.0)
    p.add_argument("--seed", type=int, default=10)
    return p.parse_args()


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def linear_schedule(optimizer, warmup, total):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, (total - step) / max(1, total - warmup))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def kd_loss(student, teacher, T):
    return F.kl_div(F.log_softmax(student / T, -1), F.softmax(teacher / T, -1),
                    reduction="batchmean") * T * T


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    teacher = mlp(20, 96, 96, 10).requires_grad_(False).eval()
    student = DDP(mlp(20, 32, 10))
    inputs = torch.randn(2048, 20, generator=torch.Generator().manual_seed(args.seed)) * 2
    data = TensorDataset(inputs)
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, args.per_device_batch, sampler=sampler, drop_last=True)

    accum = args.gradient_accumulation_steps
    updates_per_epoch = math.ceil(len(loader) / accum)
    max_steps = args.num_epochs * updates_per_epoch
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.learning_rate)
    scheduler = linear_schedule(optimizer, int(args.warmup_ratio * max_steps), max_steps)

    completed = 0
    for epoch in range(args.num_epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for i, (x,) in enumerate(loader):
            boundary = (i + 1) % accum == 0
            with nullcontext() if boundary else student.no_sync():
                loss = kd_loss(student(x), teacher(x), args.temperature)
                (loss / accum).backward()
            total += loss.detach()
            if boundary:
                torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                completed += 1
                scheduler.step()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} updates {completed}/{max_steps} "
                  f"kd {total.item() / world / len(loader):.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
