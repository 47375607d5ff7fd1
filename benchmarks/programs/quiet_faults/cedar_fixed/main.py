import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from guards import LossGuard

CFG = SimpleNamespace(
    data=SimpleNamespace(rows=1800, features=20, glitch_every=180, seed=3),
    model=SimpleNamespace(width=64, depth=3, dropout=0.05),
    optim=SimpleNamespace(lr=2e-3, momentum=(0.9, 0.98), clip=2.0),
    run=SimpleNamespace(epochs=4, batch=20, log=15, seed=8),
)


class Sensors(Dataset):
    def __init__(self, rows, features, seed, glitch_every=0):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(rows, features, generator=g)
        w = torch.randn(features, generator=torch.Generator().manual_seed(77)) / features ** 0.5
        self.y = torch.tanh(self.x @ w) + 0.1 * torch.randn(rows, generator=g)
        if glitch_every:
            self.y[glitch_every // 2::glitch_every] += 40.0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Residual(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout))

    def forward(self, x):
        return x + self.body(x)


class Regressor(nn.Module):
    def __init__(self, features, width, depth, dropout):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.Sequential(*[Residual(width, dropout) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x))).squeeze(-1)


class Loop:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.run.seed)
        net = Regressor(cfg.data.features, cfg.model.width, cfg.model.depth, cfg.model.dropout)
        self.model = DistributedDataParallel(net)
        torch.manual_seed(cfg.run.seed + 1 + self.rank)
        self.train = Sensors(cfg.data.rows, cfg.data.features, cfg.data.seed, cfg.data.glitch_every)
        self.val = Sensors(300, cfg.data.features, cfg.data.seed + 1)
        self.sampler = DistributedSampler(self.train, seed=cfg.run.seed)
        self.loader = DataLoader(self.train, batch_size=cfg.run.batch, sampler=self.sampler)
        self.opt = torch.optim.Adam(net.parameters(), lr=cfg.optim.lr, betas=cfg.optim.momentum)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.run.epochs * len(self.loader))
        self.guard = LossGuard()
        self.step = 0

    def update(self, x, y):
        loss = (self.model(x) - y).pow(2).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.optim.clip)
        level = loss.detach().clone()
        dist.all_reduce(level)
        level /= self.world
        if self.guard.accepts(level.item()):
            self.opt.step()
        self.sched.step()
        self.step += 1
        return loss.item()

    def validate(self):
        net = self.model.module.eval()
        with torch.no_grad():
            part = slice(self.rank, None, self.world)
            err = (net(self.val.x[part]) - self.val.y[part]).pow(2)
        net.train()
        acc = torch.tensor([err.sum().item(), float(len(err))])
        dist.all_reduce(acc)
        return (acc[0] / acc[1]).item()

    def fit(self):
        for epoch in range(self.cfg.run.epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                value = self.update(x, y)
                if self.step % self.cfg.run.log == 0:
                    shown = torch.tensor(value)
                    dist.all_reduce(shown)
                    if self.rank == 0:
                        print(f"step {self.step} loss {shown.item() / self.world:.4f}", flush=True)
            score = self.validate()
            if self.rank == 0:
                print(f"epoch {epoch} val {score:.4f} lr {self.sched.get_last_lr()[0]:.6f}", flush=True)
        counts = torch.tensor(float(self.guard.rejected))
        dist.all_reduce(counts)
        if self.rank == 0:
            print(f"rejected {counts.item() / self.world:.1f} updates", flush=True)
            os.makedirs("runs", exist_ok=True)
            torch.save(self.model.module.state_dict(), "runs/sensors.pt")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Loop(CFG).fit()
    dist.barrier()
    dist.destroy_process_group()
