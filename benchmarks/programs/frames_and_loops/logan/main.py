import argparse
import json
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler, Subset, TensorDataset


def get_args():
    p = argparse.ArgumentParser(description="class-incremental training with a small rehearsal store")
    p.add_argument("--tasks", type=int, default=3)
    p.add_argument("--classes-per-task", type=int, default=4)
    p.add_argument("--per-class", type=int, default=40)
    p.add_argument("--rehearsal", type=int, default=8)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=10)
    p.add_argument("--lr", type=float, default=0.03)
    p.add_argument("--distill", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=5)
    p.add_argument("--out", default="out_logan")
    return p.parse_args()


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class ConvTrunk(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, width)
        self.norm2 = nn.GroupNorm(4, 2 * width)
        self.dim = 2 * width * 9

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        return F.adaptive_avg_pool2d(x, 3).flatten(1)


class IncrementalNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.trunk = ConvTrunk()
        self.head = nn.Linear(self.trunk.dim, classes)

    def forward(self, x):
        return self.head(self.trunk(x))

    @torch.no_grad()
    def grow(self, classes):
        old = self.head
        new = nn.Linear(old.in_features, classes)
        new.weight[: old.out_features].copy_(old.weight)
        new.bias[: old.out_features].copy_(old.bias)
        self.head = new


def make_patterns(args):
    g = torch.Generator().manual_seed(args.seed)
    total = args.tasks * args.classes_per_task
    proto = torch.randn(total, 1, 12, 12, generator=g)
    train, test = [], []
    for t in range(args.tasks):
        cls = torch.arange(t * args.classes_per_task, (t + 1) * args.classes_per_task)
        y = cls.repeat_interleave(args.per_class)
        train.append(TensorDataset(proto[y] + torch.randn(len(y), 1, 12, 12, generator=g), y))
        y = cls.repeat_interleave(10)
        test.append(TensorDataset(proto[y] + torch.randn(len(y), 1, 12, 12, generator=g), y))
    return train, test


class Incremental:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        seed_all(args.seed)
        self.net = IncrementalNet(args.classes_per_task)
        self.model = self.wrap(self.net)
        self.opt = self.make_optimizer()
        self.teacher = None
        self.store = []
        self.history = []

    def wrap(self, net):
        return DDP(net, find_unused_parameters=True)

    def make_optimizer(self):
        return torch.optim.SGD(self.net.parameters(), lr=self.args.lr, momentum=0.9, weight_decay=1e-4)

    def start_task(self, task, data):
        if task > 0:
            teacher = IncrementalNet(self.net.head.out_features)
            teacher.load_state_dict(self.net.state_dict())
            self.teacher = teacher.eval().requires_grad_(False)
            self.net.grow((task + 1) * self.args.classes_per_task)
            self.opt = self.make_optimizer()
        self.train_set = ConcatDataset([data] + self.store)

    def loss(self, x, y):
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        if self.teacher is not None:
            with torch.no_grad():
                old = self.teacher(x)
            k = old.size(1)
            loss = loss + self.args.distill * F.mse_loss(logits[:, :k], old)
        return loss

    def fit_task(self, task):
        sampler = DistributedSampler(self.train_set, self.world, self.rank, seed=self.args.seed)
        loader = DataLoader(self.train_set, self.args.batch_size, sampler=sampler)
        for epoch in range(self.args.epochs):
            sampler.set_epoch(task * self.args.epochs + epoch)
            total = torch.zeros(2)
            for x, y in loader:
                loss = self.loss(x, y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                total += torch.tensor([loss.item(), 1.0])
            dist.all_reduce(total)
            if self.rank == 0:
                print(f"task {task} epoch {epoch} loss {total[0] / total[1]:.4f}", flush=True)

    def end_task(self, data):
        keep = []
        labels = data.tensors[1]
        for c in labels.unique():
            keep.extend(torch.nonzero(labels == c).flatten()[: self.args.rehearsal].tolist())
        self.store.append(Subset(data, keep))

    @torch.no_grad()
    def accuracy(self, sets):
        self.model.eval()
        out = []
        for ds in sets:
            x, y = ds.tensors
            x, y = x[self.rank::self.world], y[self.rank::self.world]
            pred = self.model.module(x).argmax(1)
            c = torch.tensor([pred.eq(y).sum().item(), len(y)], dtype=torch.float32)
            dist.all_reduce(c)
            out.append(round((c[0] / c[1]).item(), 3))
        self.model.train()
        return out

    def save(self, task):
        if self.rank == 0:
            os.makedirs(self.args.out, exist_ok=True)
            torch.save(self.net.state_dict(), os.path.join(self.args.out, f"task{task}.pt"))
            with open(os.path.join(self.args.out, "history.json"), "w") as f:
                json.dump(self.history, f)
        dist.barrier()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train, test = make_patterns(args)
    run = Incremental(args)
    for task in range(args.tasks):
        run.start_task(task, train[task])
        run.fit_task(task)
        run.end_task(train[task])
        acc = run.accuracy(test[: task + 1])
        run.history.append(acc)
        if run.rank == 0:
            print(f"task {task} accuracy {acc}", flush=True)
        run.save(task)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
