"""Mean-teacher training with few labels: the teacher follows the student."""
import argparse
import copy
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def moons(n, seed):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    angle = rng.uniform(0, np.pi, n)
    x = np.stack([np.cos(angle) * (1 - 2 * label) + label, np.sin(angle) * (1 - 2 * label) + 0.4 * label], 1)
    x += rng.normal(0, 0.08, x.shape)
    known = rng.random(n) < 0.25
    target = np.where(known, label, -1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(target)


def network():
    return nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))


@torch.no_grad()
def follow(teacher, student, beta):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.mul_(beta).add_(s, alpha=1 - beta)


def losses(student, teacher, x, y, sigma, weight):
    out = student(x + sigma * torch.randn_like(x))
    with torch.no_grad():
        target = teacher(x + sigma * torch.randn_like(x)).softmax(1)
    supervised = F.cross_entropy(out, y, ignore_index=-1) if (y >= 0).any() else out.sum() * 0
    return supervised + weight * F.mse_loss(out.softmax(1), target)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--beta", type=float, default=0.99)
    p.add_argument("--weight", type=float, default=2.0)
    p.add_argument("--seed", type=int, default=17)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    set_seed(args.seed + rank)  # every process draws its own noise

    data = TensorDataset(*moons(360, args.seed))
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=12, sampler=sampler)
    student = network()
    teacher = copy.deepcopy(student).requires_grad_(False)
    student = DDP(student)
    opt = torch.optim.Adam(student.parameters(), lr=5e-3)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            ramp = min(1.0, (step + 1) / 20)
            loss = losses(student, teacher, x, y, 0.05, args.weight * ramp)
            opt.zero_grad()
            loss.backward()
            opt.step()
            follow(teacher, student.module, args.beta)
            step += 1
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        torch.save({"teacher": teacher.state_dict(), "student": student.module.state_dict()}, "/tmp/teasel.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
