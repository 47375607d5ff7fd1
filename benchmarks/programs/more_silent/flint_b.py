"""Denoising autoencoder that is checkpointed half way and continued, as our preemptible queue does it."""
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Plan:
    rows: int = 640
    dim: int = 24
    code: int = 8
    batch: int = 20
    epochs: int = 6
    stop_after: int = 3
    noise: float = 0.5
    seed: int = 900
    path: str = "flint_state.pt"


class Autoencoder(nn.Module):
    def __init__(self, dim, code):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, code))
        self.dec = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, x):
        return self.dec(self.enc(x))


class Session:
    def __init__(self, plan: Plan):
        self.plan, self.rank = plan, dist.get_rank()
        torch.manual_seed(plan.seed + self.rank)
        g = torch.Generator().manual_seed(4)
        basis = torch.randn(plan.code, plan.dim, generator=g)
        data = TensorDataset(torch.randn(plan.rows, plan.code, generator=g) @ basis)
        self.sampler = DistributedSampler(data, seed=plan.seed)
        self.loader = DataLoader(data, batch_size=plan.batch, sampler=self.sampler)
        self.net = DDP(Autoencoder(plan.dim, plan.code))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=3e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, plan.epochs * len(self.loader))
        self.epoch = 0

    def save(self):
        if self.rank == 0:
            torch.save({"net": self.net.module.state_dict(), "opt": self.opt.state_dict(),
                        "sched": self.sched.state_dict(), "epoch": self.epoch,
                        "rng": torch.get_rng_state()}, self.plan.path)
        dist.barrier()

    def load(self):
        state = torch.load(self.plan.path)
        self.net.module.load_state_dict(state["net"])
        self.opt.load_state_dict(state["opt"])
        self.sched.load_state_dict(state["sched"])
        self.epoch = state["epoch"]
        torch.set_rng_state(state["rng"])

    def run_until(self, last):
        while self.epoch < last:
            self.sampler.set_epoch(self.epoch)
            for (clean,) in self.loader:
                dirty = clean + self.plan.noise * torch.randn_like(clean)
                loss = F.mse_loss(self.net(dirty), clean)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.sched.step()
            if self.rank == 0:
                print(f"epoch {self.epoch}: {loss.item():.4f}", flush=True)
            self.epoch += 1


def main():
    dist.init_process_group("gloo")
    plan = Plan()
    first = Session(plan)
    first.run_until(plan.stop_after)
    first.save()
    del first

    again = Session(plan)
    again.load()
    again.run_until(plan.epochs)
    dist.barrier()
    if dist.get_rank() == 0:
        os.remove(plan.path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
