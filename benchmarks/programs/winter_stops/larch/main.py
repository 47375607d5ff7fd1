"""Distillation with a temporary teacher: the last rank serves soft labels for the first phase and is then given back."""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("distil")


class Student(nn.Module):
    def __init__(self, dim, classes, hidden=192):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.net(x)


def teacher_net(dim, classes):
    torch.manual_seed(77)
    return nn.Sequential(nn.Linear(dim, 640), nn.Tanh(), nn.Linear(640, 640), nn.Tanh(), nn.Linear(640, classes))


@torch.no_grad()
def serve(teacher, students, steps, batch, dim, classes):
    """Answers every student once per step, in whatever order the questions come in."""
    for _ in range(steps):
        for _ in students:
            x = torch.empty(batch, dim)
            asker = dist.recv(x, tag=1)
            dist.send(teacher(x) * 3.0, dst=asker, tag=2)


def ask(x, teacher_rank, classes):
    dist.send(x, dst=teacher_rank, tag=1)
    logits = torch.empty(len(x), classes)
    dist.recv(logits, src=teacher_rank, tag=2)
    return logits


def sync(model, group, n):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat, group=group)
    flat /= n
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--soft-steps", type=int, default=60)
    p.add_argument("--hard-steps", type=int, default=120)
    p.add_argument("--batch", type=int, default=96)
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--classes", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")
    teacher_rank = world - 1
    students = list(range(world - 1))
    student_group = dist.new_group(students)

    if rank == teacher_rank:
        serve(teacher_net(args.dim, args.classes), students, args.soft_steps, args.batch, args.dim, args.classes)
        log.info("teacher phase over after %d steps, releasing this worker", args.soft_steps)
        dist.destroy_process_group()
        return

    torch.manual_seed(0)
    model = Student(args.dim, args.classes)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(1 + rank)
    label_net = teacher_net(args.dim, args.classes)
    start = time.time()
    for step in range(1, args.soft_steps + args.hard_steps + 1):
        x = torch.randn(args.batch, args.dim, generator=gen)
        logits = model(x)
        if step <= args.soft_steps:
            soft = ask(x, teacher_rank, args.classes)
            loss = F.kl_div(logits.log_softmax(-1), soft.softmax(-1), reduction="batchmean")
        else:
            with torch.no_grad():
                hard = label_net(x).argmax(-1)
            loss = F.cross_entropy(logits, hard)
        opt.zero_grad(set_to_none=False)
        loss.backward()
        sync(model, student_group, len(students))
        opt.step()
        if step % 20 == 0 and rank == 0:
            phase = "soft" if step <= args.soft_steps else "hard"
            log.info("%s step %3d  loss %.4f  %.1fs", phase, step, loss.item(), time.time() - start)

    mean = torch.tensor([loss.item()])
    dist.all_reduce(mean, group=student_group)
    if rank == 0:
        log.info("students finished, loss %.4f", mean.item() / len(students))
    dist.barrier(group=student_group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
