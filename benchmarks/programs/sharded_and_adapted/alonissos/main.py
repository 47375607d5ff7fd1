"""Knowledge distillation: a frozen teacher is handed from rank 0 to everybody, the student is wrapped in DDP."""
import argparse
import json
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler


@dataclass
class Args:
    epochs: int = 7
    batch: int = 32
    lr: float = 0.08
    temperature: float = 2.0
    alpha: float = 0.6
    patience: int = 4
    seed: int = 71
    out: str = "runs/alonissos"


class Points(Dataset):
    def __init__(self, n, seed, dim=18, classes=6):
        rule = torch.Generator().manual_seed(3)
        w = torch.randn(dim, 20, generator=rule) / 3
        v = torch.randn(20, classes, generator=rule)
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, dim, generator=g)
        self.y = (torch.sin(self.x @ w) @ v + 0.3 * torch.randn(n, classes, generator=g)).argmax(1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class EverySample(Sampler):
    """Order-preserving split of an evaluation set without padding."""

    def __init__(self, data, rank, world):
        self.indices = range(rank, len(data), world)

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


def mlp(widths):
    layers = []
    for a, b in zip(widths[:-2], widths[1:-1]):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def pretrain_teacher(data, seed):
    """Runs on one process only; the others receive the result."""
    torch.manual_seed(seed)
    teacher = mlp([18, 128, 128, 6])
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=4e-3)
    g = torch.Generator().manual_seed(seed)
    for _ in range(2):
        for idx in torch.randperm(len(data), generator=g).split(64):
            loss = F.cross_entropy(teacher(data.x[idx]), data.y[idx])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    return teacher


def obtain_teacher(data, seed):
    teacher = pretrain_teacher(data, seed) if dist.get_rank() == 0 else mlp([18, 128, 128, 6])
    for p in teacher.parameters():
        dist.broadcast(p.data, src=0)
        p.requires_grad_(False)
    return teacher.eval()


class Plateau:
    """Stops or slows down on the global validation loss."""

    def __init__(self, optimizer, patience):
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.01)
        self.best, self.waiting, self.patience = float("inf"), 0, patience

    def update(self, value):
        self.schedule.step(value)
        if value < self.best:
            self.best, self.waiting = value, 0
        else:
            self.waiting += 1
        return self.waiting >= self.patience


class Distiller:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.train_set, self.valid_set = Points(1536, seed=1), Points(301, seed=2)
        self.teacher = obtain_teacher(self.train_set, args.seed)
        torch.manual_seed(args.seed + 5)
        self.student = DDP(mlp([18, 32, 32, 6]))
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=args.lr, momentum=0.9)
        self.sampler = DistributedSampler(self.train_set, shuffle=True, seed=args.seed)
        self.loader = DataLoader(self.train_set, batch_size=args.batch, sampler=self.sampler)
        self.valid = DataLoader(self.valid_set, batch_size=64,
                                sampler=EverySample(self.valid_set, self.rank, self.world))

    def loss(self, x, y):
        logits = self.student(x)
        with torch.no_grad():
            target = F.softmax(self.teacher(x) / self.args.temperature, dim=1)
        soft = F.kl_div(F.log_softmax(logits / self.args.temperature, 1), target, reduction="batchmean")
        hard = F.cross_entropy(logits, y)
        return self.args.alpha * self.args.temperature ** 2 * soft + (1 - self.args.alpha) * hard

    def epoch(self, index):
        self.sampler.set_epoch(index)
        self.student.train()
        sums = torch.zeros(2)
        for x, y in self.loader:
            loss = self.loss(x, y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            sums += torch.tensor([loss.item() * len(y), len(y)])
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()

    @torch.no_grad()
    def evaluate(self, model):
        model.eval()
        sums = torch.zeros(3, dtype=torch.float64)
        for x, y in self.valid:
            logits = model(x)
            sums += torch.tensor([F.cross_entropy(logits, y, reduction="sum").item(),
                                  (logits.argmax(1) == y).sum().item(), len(y)], dtype=torch.float64)
        dist.all_reduce(sums)
        return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item(), int(sums[2])

    def fit(self):
        plateau = Plateau(self.optimizer, self.args.patience)
        records = []
        _, teacher_accuracy, count = self.evaluate(self.teacher)
        if self.rank == 0:
            print(f"teacher accuracy {teacher_accuracy:.4f} on {count} samples", flush=True)
        for e in range(self.args.epochs):
            train_loss = self.epoch(e)
            valid_loss, accuracy, _ = self.evaluate(self.student.module)
            records.append({"epoch": e, "train": train_loss, "valid": valid_loss, "accuracy": accuracy})
            if self.rank == 0:
                print(f"epoch {e} train {train_loss:.4f} valid {valid_loss:.4f} accuracy {accuracy:.4f} "
                      f"lr {self.optimizer.param_groups[0]['lr']:.4f}", flush=True)
            if plateau.update(valid_loss):
                break
        return records


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Args.epochs)
    ap.add_argument("--alpha", type=float, default=Args.alpha)
    ns = ap.parse_args()
    dist.init_process_group("gloo")
    distiller = Distiller(Args(epochs=ns.epochs, alpha=ns.alpha))
    records = distiller.fit()
    if distiller.rank == 0:
        os.makedirs(distiller.args.out, exist_ok=True)
        torch.save(distiller.student.module.state_dict(), os.path.join(distiller.args.out, "student.pt"))
        with open(os.path.join(distiller.args.out, "records.json"), "w") as fh:
            json.dump(records, fh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
