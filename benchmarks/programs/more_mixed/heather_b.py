"""Mean-teacher semi-supervised training with a consistency term."""
import argparse
import copy
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("heather")


def is_main():
    return dist.get_rank() == 0


class Student(nn.Module):
    def __init__(self, d=14, h=48, c=4):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.LayerNorm(h), nn.Linear(h, h), nn.GELU())
        self.g = nn.Linear(h, c)

    def forward(self, x):
        return self.g(self.f(x))


class EMA:
    def __init__(self, model, decay):
        self.teacher = copy.deepcopy(model).eval()
        for p in self.teacher.parameters():
            p.requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for t, s in zip(self.teacher.parameters(), model.parameters()):
            t.lerp_(s, 1 - self.decay)

    @torch.no_grad()
    def predict(self, x):
        return self.teacher(x).softmax(-1)


def corpora(seed=23):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(4, 14, generator=g) * 1.5
    y = torch.randint(0, 4, (768,), generator=g)
    x = centers[y] + torch.randn(768, 14, generator=g)
    return TensorDataset(x[:192], y[:192]), TensorDataset(x[192:])


def cycle(loader):
    while True:
        yield from loader


def jitter(x, s):
    return x + s * torch.randn_like(x)


class Trainer:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        self.model = DDP(Student())
        self.ema = EMA(self.model.module, args.decay)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        lab, unl = corpora()
        self.lab = cycle(DataLoader(lab, 16, sampler=DistributedSampler(lab)))
        self.unl = cycle(DataLoader(unl, 32, sampler=DistributedSampler(unl)))
        torch.manual_seed(args.seed + 1 + dist.get_rank())

    def step(self, n):
        x, y = next(self.lab)
        u, = next(self.unl)
        out = self.model(torch.cat([x, jitter(u, 0.3)]))
        sup = F.cross_entropy(out[: len(x)], y)
        cons = F.mse_loss(out[len(x):].softmax(-1), self.ema.predict(jitter(u, 0.1)))
        loss = sup + self.args.weight * min(1.0, n / 20) * cons
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.ema.update(self.model.module)
        if is_main() and n % 10 == 0:
            log.info("step %d sup %.4f cons %.4f", n, sup.item(), cons.item())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--decay", type=float, default=0.9)
    ap.add_argument("--weight", type=float, default=4.0)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    for n in range(args.steps):
        trainer.step(n)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
