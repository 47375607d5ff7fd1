"""Fine-grained sharded training of a residual MLP encoder on tabular data (FSDP2)."""
import argparse
import dataclasses
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


@dataclasses.dataclass
class Config:
    features: int = 48
    width: int = 160
    depth: int = 4
    classes: int = 10
    samples: int = 3072
    global_batch: int = 96
    epochs: int = 3
    lr: float = 0.08
    momentum: float = 0.9
    max_norm: float = 0.5
    seed: int = 11
    log_every: int = 16


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.fc2(F.silu(self.fc1(self.norm(x))))


class TabularNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Linear(cfg.features, cfg.width)
        self.blocks = nn.ModuleList(ResidualBlock(cfg.width) for _ in range(cfg.depth))
        self.head = nn.Sequential(nn.LayerNorm(cfg.width), nn.Linear(cfg.width, cfg.classes))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_table(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    x = torch.randn(cfg.samples + 600, cfg.features, generator=g)
    w = torch.randn(cfg.features, 24, generator=g)
    v = torch.randn(24, cfg.classes, generator=g)
    y = (torch.tanh(x @ w / 4) @ v).argmax(-1)
    return (x[:cfg.samples], y[:cfg.samples]), (x[cfg.samples:], y[cfg.samples:])


def local_view(t):
    return t.to_local() if isinstance(t, DTensor) else t


class GradientClipper:
    """Keeps a running view of the gradient norm and rescales gradients above the ceiling."""

    def __init__(self, params, max_norm):
        self.params = [p for p in params if p.requires_grad]
        self.max_norm = max_norm
        self.last = math.nan
        self.hits = 0
        self.calls = 0

    @torch.no_grad()
    def total_norm(self):
        squares = [local_view(p.grad).float().pow(2).sum() for p in self.params if p.grad is not None]
        total = torch.stack(squares).sum()
        dist.all_reduce(total)
        return total.sqrt()

    @torch.no_grad()
    def __call__(self):
        norm = self.total_norm()
        coef = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
        for p in self.params:
            if p.grad is not None:
                local_view(p.grad).mul_(coef)
        self.calls += 1
        self.hits += int(coef < 1.0)
        self.last = norm.item()
        return self.last


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.mesh = init_device_mesh("cpu", (self.world,), mesh_dim_names=("shard",))
        torch.manual_seed(cfg.seed)
        self.model = TabularNet(cfg)
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for block in self.model.blocks:
            fully_shard(block, mesh=self.mesh, mp_policy=policy)
        fully_shard(self.model, mesh=self.mesh, mp_policy=policy)
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        plain = [p for p in self.model.parameters() if p.ndim <= 1]
        self.optimizer = torch.optim.SGD(
            [{"params": decay, "weight_decay": 1e-4}, {"params": plain, "weight_decay": 0.0}],
            lr=cfg.lr, momentum=cfg.momentum)
        steps = cfg.epochs * (cfg.samples // cfg.global_batch)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=steps)
        self.clipper = GradientClipper(self.model.parameters(), cfg.max_norm)
        self.train_set, self.valid_set = make_table(cfg)

    def batches(self, epoch):
        cfg = self.cfg
        order = torch.randperm(cfg.samples, generator=torch.Generator().manual_seed(cfg.seed * 100 + epoch))
        per_rank = cfg.global_batch // self.world
        for start in range(0, cfg.samples - cfg.global_batch + 1, cfg.global_batch):
            idx = order[start + self.rank * per_rank:start + (self.rank + 1) * per_rank]
            yield self.train_set[0][idx], self.train_set[1][idx]

    def report(self, epoch, step, loss):
        value = loss.detach().clone()
        dist.all_reduce(value)
        if self.rank == 0:
            print(f"epoch {epoch} step {step} loss {value.item() / self.world:.4f} "
                  f"grad {self.clipper.last:.3f} lr {self.scheduler.get_last_lr()[0]:.4f}", flush=True)

    def train_epoch(self, epoch):
        self.model.train()
        for step, (x, y) in enumerate(self.batches(epoch)):
            self.optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.clipper()
            self.optimizer.step()
            self.scheduler.step()
            if step % self.cfg.log_every == 0:
                self.report(epoch, step, loss)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = self.valid_set
        lo = self.rank * len(y) // self.world
        hi = (self.rank + 1) * len(y) // self.world
        good = (self.model(x[lo:hi]).argmax(-1) == y[lo:hi]).sum()
        count = torch.tensor([int(good), hi - lo])
        dist.all_reduce(count)
        return count[0].item() / count[1].item()

    def gather_state(self):
        return {k: (v.full_tensor() if isinstance(v, DTensor) else v) for k, v in self.model.state_dict().items()}


def main():
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(Config):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    cfg = Config(**vars(parser.parse_args()))
    dist.init_process_group("gloo")
    trainer = Trainer(cfg)
    began = time.time()
    for epoch in range(cfg.epochs):
        trainer.train_epoch(epoch)
        accuracy = trainer.validate()
        if trainer.rank == 0:
            print(f"epoch {epoch} accuracy {accuracy:.4f} clipped {trainer.clipper.hits}/{trainer.clipper.calls} "
                  f"({time.time() - began:.1f}s)", flush=True)
    state = trainer.gather_state()
    if trainer.rank == 0:
        print("parameters", sum(v.numel() for v in state.values()),
              "checksum", round(sum(v.double().abs().sum().item() for v in state.values()), 4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
