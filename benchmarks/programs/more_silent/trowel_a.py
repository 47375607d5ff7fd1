"""Mean teacher: few labelled rows, many unlabelled ones, the averaged weights give the soft targets."""
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

DIM, CLASSES, LABELLED = 16, 4, 0.25


class HalfLabelled(Dataset):
    def __init__(self, n=720):
        g = torch.Generator().manual_seed(6)
        self.y = torch.randint(CLASSES, (n,), generator=g)
        self.x = 1.2 * torch.randn(CLASSES, DIM, generator=g)[self.y] + torch.randn(n, DIM, generator=g)
        self.known = torch.rand(n, generator=g) < LABELLED

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i], self.known[i]


class Teacher:
    def __init__(self, student: nn.Module, decay: float):
        self.net = copy.deepcopy(student).eval().requires_grad_(False)
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, student: nn.Module):
        self.updates += 1
        d = min(self.decay, self.updates / (self.updates + 10))
        for t, s in zip(self.net.parameters(), student.parameters()):
            t.lerp_(s, 1 - d)

    @torch.no_grad()
    def targets(self, x):
        return F.softmax(self.net(x), dim=-1)


def make_net():
    return nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, CLASSES))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(50 + rank)
    data = HalfLabelled()
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    student = DDP(make_net())
    teacher = Teacher(student.module, decay=0.98)
    opt = torch.optim.AdamW(student.parameters(), lr=3e-3)

    step = 0
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y, known in loader:
            soft = teacher.targets(x)
            logits = student(x + 0.1 * torch.randn_like(x))
            ce = F.cross_entropy(logits, y, reduction="none")
            supervised = (ce * known).mean() / LABELLED
            agree = F.kl_div(F.log_softmax(logits, -1), soft, reduction="batchmean")
            loss = supervised + min(1.0, step / 30) * agree
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0:
                teacher.update(student.module)
        if rank == 0:
            acc = (teacher.net(data.x).argmax(-1) == data.y).float().mean().item()
            print(f"epoch {epoch}: teacher accuracy {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
