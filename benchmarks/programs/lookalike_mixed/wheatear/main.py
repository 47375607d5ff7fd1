import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Student(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(14, width), nn.ReLU(), nn.Linear(width, 6))

    def forward(self, x):
        return self.body(x)

    def soft(self, x, temperature):
        return F.log_softmax(self.body(x) / temperature, -1)

    def score(self, x, y):
        return (self.body(x).argmax(-1) == y).float().sum()


def rows(n, seed):
    x = torch.randn(n, 14, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :6].argmax(1))


def run(model, opt, loader, epochs, teacher=None):
    for epoch in epochs:
        loader.sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            opt.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y)
            if teacher is not None:
                target = teacher.soft(x, 2.0)
                loss = loss + F.kl_div(F.log_softmax(out / 2.0, -1), target, log_target=True, reduction="batchmean")
            loss.backward()
            opt.step()


def evaluate(model, loader):
    inner = model.module
    inner.eval()
    hits = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            hits += torch.stack([inner.score(x, y), torch.tensor(float(len(y)))])
    dist.all_reduce(hits)
    return float(hits[0] / hits[1])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(20)
    train, val = rows(640, 1), rows(160, 2)
    loader = DataLoader(train, batch_size=32, sampler=DistributedSampler(train, seed=3), drop_last=True)
    check = DataLoader(val, batch_size=40, sampler=DistributedSampler(val, shuffle=False))
    model = DDP(Student(48))
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    run(model, opt, loader, range(3))
    first = evaluate(model, check)
    teacher = copy.deepcopy(model.module).requires_grad_(False).eval()
    run(model, opt, loader, range(3, 6), teacher)
    second = evaluate(model, check)
    if dist.get_rank() == 0:
        print(f"accuracy {first:.3f} then {second:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
