import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Partly(Dataset):
    def __init__(self, n=480, dim=20, labelled=0.3):
        g = torch.Generator().manual_seed(14)
        self.x = torch.randn(n, dim, generator=g)
        self.y = (self.x[:, :5].sum(1) > 0).long()
        self.known = torch.rand(n, generator=g) < labelled

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i], self.known[i]


class Ema:
    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, source):
        for a, b in zip(self.model.parameters(), source.parameters()):
            a.lerp_(b, 1 - self.decay)


def network():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def jitter(x, generator):
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def losses(student, teacher, x, y, known, generator, weight):
    logits = student(jitter(x, generator))
    with torch.no_grad():
        target = teacher(jitter(x, generator)).softmax(-1)
    consistency = F.mse_loss(logits.softmax(-1), target)
    supervised = (F.cross_entropy(logits, y, reduction="none") * known).mean()
    return supervised + weight * consistency


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--decay", type=float, default=0.9)
    p.add_argument("--weight", type=float, default=2.0)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(8)
    base = network()
    ema = Ema(base, args.decay)
    student = DDP(base)
    noise = torch.Generator().manual_seed(100 + rank)
    data = Partly()
    sampler = DistributedSampler(data, shuffle=True, seed=4)
    loader = DataLoader(data, batch_size=24, sampler=sampler)
    opt = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y, known in loader:
            loss = losses(student, ema.model, x, y, known, noise, args.weight)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema.update(student.module)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
            torch.save(ema.model.state_dict(), f"teacher_{epoch}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
