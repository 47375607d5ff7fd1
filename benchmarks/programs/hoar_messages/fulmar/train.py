"""Distillation: rank 0 runs the teacher, every other rank trains a student on its own shard."""
import argparse
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from channel import LogitReceiver, LogitSender
from data import make_loader


def mlp(width, classes):
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, classes))


def teach(args, n_students):
    teacher = mlp(128, args.classes).eval()
    loaders = [make_loader(s, n_students, args.batch_size, drop_last=True) for s in range(n_students)]
    senders = [LogitSender(s + 1, len(l)) for s, l in enumerate(loaders)]
    for epoch in range(args.epochs):
        for step, batches in enumerate(islice(zip(*loaders), args.steps)):
            with torch.no_grad():
                for sender, (x,) in zip(senders, batches):
                    sender.put(epoch, step, teacher(x))
        for sender in senders:
            sender.flush()
        print(f"[teacher] epoch {epoch} delivered", flush=True)


def study(args, rank, n_students):
    torch.manual_seed(rank)
    student = mlp(24, args.classes)
    opt = torch.optim.Adam(student.parameters(), 1e-2)
    loader = make_loader(rank - 1, n_students, args.batch_size, drop_last=False)
    receiver = LogitReceiver(len(loader))
    for epoch in range(args.epochs):
        for step, (x,) in enumerate(islice(loader, args.steps)):
            want = receiver.get(epoch, step, len(x), args.classes)
            loss = F.kl_div(F.log_softmax(student(x), -1), F.softmax(want, -1), reduction="batchmean")
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"[student {rank}] epoch {epoch} kl {loss.item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--steps", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--classes", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, n_students = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(0)
    if rank == 0:
        teach(args, n_students)
    else:
        study(args, rank, n_students)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
