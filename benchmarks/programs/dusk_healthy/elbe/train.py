"""Distillation with the teacher on a rank of its own.

rank 0        : frozen teacher, serves logits
ranks 1..N-1  : students, DDP over their own process group

A student sends its augmented batch to the teacher and goes on with its own forward meanwhile.
"""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES, SIDE = 10, 20


def cnn(width, depth):
    layers, c = [], 3
    for i in range(depth):
        layers += [nn.Conv2d(c, width, 3, 2 if i in (1, 3) else 1, 1, bias=False), nn.GroupNorm(8, width), nn.ReLU()]
        c = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, CLASSES))


def data(n, seed):
    g = torch.Generator().manual_seed(77)
    proto = F.interpolate(torch.randn(CLASSES, 3, 4, 4, generator=g), size=SIDE) + torch.randn(CLASSES, 3, 1, 1, generator=g)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=g)
    return TensorDataset(0.5 * proto[y] + torch.randn(n, 3, SIDE, SIDE, generator=g), y)


def pretrain(net, steps=40):
    """Stands in for loading a released checkpoint."""
    ds = data(64 * steps, seed=50)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for x, y in DataLoader(ds, 64):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    return net.eval().requires_grad_(False)


def serve(teacher, students, batch):
    """Answer requests until every student has said goodbye. Header: [kind, rows]."""
    open_students, served = set(students), 0
    head = torch.zeros(2, dtype=torch.long)
    while open_students:
        who = dist.recv(head)                      # whoever comes first
        if head[0] == 0:
            open_students.discard(who)
            continue
        x = torch.empty(int(head[1]), 3, SIDE, SIDE)
        dist.recv(x, src=who)
        with torch.inference_mode():
            logits = teacher(x)
        dist.send(logits.clone(), dst=who)
        served += len(x)
    return served


class TeacherClient:
    def query(self, x):
        self.buf = torch.empty(len(x), CLASSES)
        self.sent = [dist.isend(torch.tensor([1, len(x)]), dst=0), dist.isend(x.contiguous(), dst=0)]
        self.recv = dist.irecv(self.buf, src=0)

    def result(self):
        for w in self.sent:
            w.wait()
        self.recv.wait()
        return self.buf

    def close(self):
        dist.send(torch.tensor([0, 0]), dst=0)


def train_student(args, group, rank, students):
    torch.manual_seed(1)
    net = DDP(cnn(24, 4), process_group=group)
    ds = data(1920, seed=60)
    sampler = DistributedSampler(ds, len(students), rank - 1, shuffle=True)
    loader = DataLoader(ds, args.batch_size, sampler=sampler)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    client = TeacherClient()
    torch.manual_seed(10 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0, agree = time.time(), 0
        for x, y in loader:
            x = x + 0.1 * torch.randn_like(x)
            client.query(x)
            out = net(x)
            soft = client.result()
            kd = F.kl_div(F.log_softmax(out / args.temp, 1), F.softmax(soft / args.temp, 1), reduction="batchmean")
            loss = args.alpha * args.temp ** 2 * kd + (1 - args.alpha) * F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            agree += (out.argmax(1) == soft.argmax(1)).sum().item()
        print(f"student {rank} epoch {epoch} loss {loss.item():.3f} agreement {agree / len(sampler):.3f} "
              f"{time.time() - t0:.1f}s", flush=True)
    client.close()
    return net.module


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=40)
    ap.add_argument("--temp", type=float, default=3.0)
    ap.add_argument("--alpha", type=float, default=0.7)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    students = list(range(1, world))
    group = dist.new_group(students)
    if rank == 0:
        torch.manual_seed(0)
        teacher = pretrain(cnn(48, 5))
        print(f"teacher served {serve(teacher, students, args.batch_size)} images", flush=True)
    else:
        net = train_student(args, group, rank, students)
        if rank == students[0]:
            out = args.out or tempfile.mkdtemp()
            os.makedirs(out, exist_ok=True)
            torch.save(net.state_dict(), os.path.join(out, "student.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
