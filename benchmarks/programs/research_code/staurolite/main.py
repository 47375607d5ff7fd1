"""Sharded training that saves with DCP in the middle of an epoch and goes on from there in a second leg."""
import argparse
import logging
import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("legs")


def table(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=g)
    y = (x[:, :4] * x[:, 4:8]).sum(1) + x[:, 8].abs()
    return TensorDataset(x, y)


class ResNetMLP(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.05),
                                                  nn.Linear(2 * width, width)) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return self.out(h)


class EpochOrder:
    """Order of one epoch from (seed, epoch); this rank's part from `offset` on."""

    def __init__(self, n, batch, seed):
        self.n, self.batch, self.seed, self.epoch, self.done = n, batch, seed, 0, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed * 131 + self.epoch)
        order = torch.randperm(self.n, generator=g)[:self.n // (self.world * self.batch) * self.world * self.batch]
        mine = order[self.rank::self.world]
        for b in mine.split(self.batch)[self.done:]:
            yield b.tolist()

    def next_epoch(self):
        self.epoch, self.done = self.epoch + 1, 0


class TrainState(Stateful):
    """What DCP saves: sharded weights and optimizer, plus the small replicated things."""

    def __init__(self, leg):
        self.leg = leg

    def state_dict(self):
        m, o = get_state_dict(self.leg.model, self.leg.opt)
        return {"model": m, "optim": o, "sched": self.leg.sched.state_dict(), "step": self.leg.step,
                "epoch": self.leg.order.epoch, "done": self.leg.order.done,
                f"rng_{dist.get_rank()}": torch.get_rng_state()}

    def load_state_dict(self, sd):
        set_state_dict(self.leg.model, self.leg.opt, model_state_dict=sd["model"], optim_state_dict=sd["optim"])
        self.leg.sched.load_state_dict(sd["sched"])
        self.leg.step, self.leg.order.epoch, self.leg.order.done = sd["step"], sd["epoch"], sd["done"]
        torch.set_rng_state(sd[f"rng_{dist.get_rank()}"])


class Leg:
    def __init__(self, a, mesh, train, test):
        self.a, self.test = a, test
        torch.manual_seed(a.seed)
        self.model = ResNetMLP()
        for b in self.model.blocks:
            fully_shard(b, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=a.lr, weight_decay=1e-2)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, a.steps)
        self.order = EpochOrder(len(train), a.batch, a.seed)
        self.loader = DataLoader(train, batch_sampler=self.order, generator=torch.Generator().manual_seed(0))
        self.step = 0
        torch.manual_seed(a.seed * 10 + dist.get_rank())

    def run(self, until):
        while self.step < until:
            for x, y in self.loader:
                loss = F.smooth_l1_loss(self.model(x).squeeze(-1), y)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.sched.step()
                self.opt.zero_grad()
                self.step += 1
                self.order.done += 1
                if self.step == until:
                    return
            self.order.next_epoch()
            log.info("epoch %d step %d lr %.2e test %.4f", self.order.epoch, self.step, self.sched.get_last_lr()[0], self.evaluate())

    @torch.no_grad()
    def evaluate(self):
        """Equal parts, since every rank must take part in the same number of forwards."""
        self.model.eval()
        x, y = self.test.tensors
        n = len(x) // dist.get_world_size()
        sl = slice(dist.get_rank() * n, (dist.get_rank() + 1) * n)
        e = F.l1_loss(self.model(x[sl]).squeeze(-1), y[sl])
        dist.all_reduce(e)
        self.model.train()
        return e.item() / dist.get_world_size()


def fingerprint(model):
    model.reshard()
    s = torch.stack([p.to_local().double().pow(2).sum() for p in model.parameters()]).sum()
    dist.all_reduce(s)
    return s.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=44)
    p.add_argument("--save-at", type=int, default=25)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=27)
    p.add_argument("--dir", default="legs_ckpt")
    p.add_argument("--one-leg", action="store_true")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    train, test = table(1024, 1), table(256, 2)
    if rank == 0:
        shutil.rmtree(a.dir, ignore_errors=True)
    dist.barrier()
    leg = Leg(a, mesh, train, test)
    if not a.one_leg:
        leg.run(a.save_at)
        dcp.save({"train": TrainState(leg)}, checkpoint_id=os.path.join(a.dir, f"step{leg.step}"))
        path = os.path.join(a.dir, f"step{leg.step}")
        del leg
        leg = Leg(a, mesh, train, test)
        dcp.load({"train": TrainState(leg)}, checkpoint_id=path)
        log.info("resumed at step %d, batch %d of epoch %d", leg.step, leg.order.done, leg.order.epoch)
    leg.run(a.steps)
    log.info("end: step %d test %.5f fingerprint %.8f", leg.step, leg.evaluate(), fingerprint(leg.model))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
