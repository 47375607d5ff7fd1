import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.GELU(), nn.Linear(h, h), nn.GELU(), nn.Linear(h, o))


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = mlp(40, 64, 32)
        self.predictor = mlp(32, 32, 32)

    def forward(self, x):
        z = self.encoder(x)
        return z, self.predictor(z)


class MeanTeacher:
    def __init__(self, source, decay):
        self.module = copy.deepcopy(source).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, source):
        for t, s in zip(self.module.parameters(), source.parameters()):
            t.mul_(self.decay).add_(s, alpha=1 - self.decay)

    @torch.no_grad()
    def target(self, x):
        return F.normalize(self.module(x)[0], dim=-1)


def augment(x, g):
    return x * (torch.rand(x.shape, generator=g) > 0.2) + 0.1 * torch.randn(x.shape, generator=g)


def make_loader(rank, world):
    g = torch.Generator().manual_seed(42)
    centers = torch.randn(8, 40, generator=g)
    x = centers[torch.randint(0, 8, (1600,), generator=g)] + 0.3 * torch.randn(1600, 40, generator=g)
    ds = TensorDataset(x)
    sampler = DistributedSampler(ds, world, rank, seed=1)
    return DataLoader(ds, batch_size=20, sampler=sampler, drop_last=True), sampler


def setup(rank):
    torch.manual_seed(1000 + rank)
    net = Student()
    model = DDP(net)
    teacher = MeanTeacher(net, 0.998)
    return model, teacher


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, teacher = setup(rank)
    loader, sampler = make_loader(rank, world)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            _, p = model(augment(x, g))
            loss = 2 - 2 * (F.normalize(p, dim=-1) * teacher.target(augment(x, g))).sum(-1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            teacher.update(model.module)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    teacher_net = teacher.module
    if rank == 0:
        torch.save(teacher.module.state_dict(), "teacher_last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
