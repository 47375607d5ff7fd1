"""Semi-supervised sensor classification: the student follows a teacher kept as a dictionary of tensors."""
import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Settings:
    steps: int = 160
    batch: int = 32
    lr: float = 3e-3
    weight: float = 0.5
    patience: float = 0.98
    seed: int = 17


class Sensors(Dataset):
    """Eight channels, four states; three rows in four carry no label (-1)."""

    def __init__(self, count, seed, labelled=0.25):
        gen = torch.Generator().manual_seed(seed)
        centres = torch.randn(4, 8, generator=torch.Generator().manual_seed(99)) * 1.5
        self.truth = torch.randint(0, 4, (count,), generator=gen)
        self.x = centres[self.truth] + torch.randn(count, 8, generator=gen)
        shown = torch.rand(count, generator=gen) < labelled
        self.y = torch.where(shown, self.truth, torch.full_like(self.truth, -1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i], self.truth[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 4))

    def forward(self, x):
        return self.net(x)


class Teacher:
    """Weights of an earlier student; taken over whenever the loss of all replicas has come down enough."""

    def __init__(self, module, patience):
        self.module, self.patience = module, patience
        self.running, self.mark, self.taken = None, float("inf"), 0
        self.weights = {}
        self.take()

    def take(self):
        self.weights = {k: v.detach().clone() for k, v in self.module.named_parameters()}
        self.taken += 1

    @torch.no_grad()
    def __call__(self, x):
        return functional_call(self.module, self.weights, (x,)).softmax(-1)

    def observe(self, loss):
        shared = loss.detach().clone()
        dist.all_reduce(shared)
        value = shared.item() / dist.get_world_size()
        self.running = value if self.running is None else 0.9 * self.running + 0.1 * value
        if self.running < self.mark * self.patience:
            self.mark = self.running
            self.take()
        return self.running


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def run(cfg):
    rank, world = dist.get_rank(), dist.get_world_size()
    train, held = Sensors(1536, cfg.seed), Sensors(512, cfg.seed + 1)
    sampler = DistributedSampler(train, world, rank, seed=cfg.seed, drop_last=True)
    batches = endless(DataLoader(train, cfg.batch, sampler=sampler, drop_last=True), sampler)

    torch.manual_seed(cfg.seed)
    student = DDP(Net())
    teacher = Teacher(student.module, cfg.patience)
    optimizer = torch.optim.AdamW(student.parameters(), lr=cfg.lr)
    jitter = torch.Generator().manual_seed(cfg.seed * 31 + rank)

    for step in range(1, cfg.steps + 1):
        x, y, _ = next(batches)
        weak = x + 0.05 * torch.randn(x.shape, generator=jitter)
        strong = x + 0.4 * torch.randn(x.shape, generator=jitter)
        logits = student(strong)
        known = (y >= 0).float()
        supervised = (F.cross_entropy(logits, y.clamp(min=0), reduction="none") * known).mean()
        follow = F.kl_div(logits.log_softmax(-1), teacher(weak), reduction="batchmean")
        loss = supervised + cfg.weight * follow
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running = teacher.observe(loss)
        if step % 40 == 0:
            with torch.no_grad():
                x, truth = held.x[rank::world], held.truth[rank::world]
                hits = torch.tensor([(student.module(x).argmax(-1) == truth).sum().item(), len(x)])
            dist.all_reduce(hits)
            if rank == 0:
                print(f"{step:4d} loss {running:.4f} teacher #{teacher.taken} acc {hits[0].item() / hits[1].item():.3f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    for key, value in vars(Settings()).items():
        ap.add_argument(f"--{key}", type=type(value), default=value)
    settings = Settings(**vars(ap.parse_args()))
    dist.init_process_group("gloo")
    run(settings)
    dist.barrier()
    dist.destroy_process_group()
