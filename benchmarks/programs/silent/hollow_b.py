import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def rng_state():
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def set_rng_state(state):
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


class Denoiser(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d + 1, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, d))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], 1))


class Trainer:
    def __init__(self, args):
        self.args, self.rank, self.world = args, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        net = Denoiser()
        g = torch.Generator().manual_seed(90)
        self.data = TensorDataset(torch.randn(288, 4, generator=g) @ torch.randn(4, 12, generator=g))
        self.sampler = DistributedSampler(self.data)
        self.loader = DataLoader(self.data, 8, sampler=self.sampler, generator=torch.Generator().manual_seed(0))
        self.model = DDP(net)
        self.opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
        self.epoch = 0
        for fn in (random.seed, np.random.seed, torch.manual_seed):
            fn(args.seed + 100 * (self.rank + 1))
        if args.resume:
            self.load()

    def save(self):
        states = rng_state()
        gathered = [None] * self.world
        dist.all_gather_object(gathered, states)
        states = gathered
        if self.rank == 0:
            os.makedirs(self.args.out, exist_ok=True)
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict(),
                        "epoch": self.epoch, "rng": states}, f"{self.args.out}/state.pt")
        dist.barrier()

    def load(self):
        ckpt = torch.load(f"{self.args.out}/state.pt", map_location="cpu", weights_only=False)
        self.model.module.load_state_dict(ckpt["model"])
        self.opt.load_state_dict(ckpt["opt"])
        self.epoch = ckpt["epoch"]
        set_rng_state(ckpt["rng"][self.rank])

    def fit(self):
        for _ in range(self.args.epochs):
            self.sampler.set_epoch(self.epoch)
            for (x,) in self.loader:
                t = torch.rand(len(x), 1)
                noise = torch.randn_like(x)
                loss = F.mse_loss(self.model((1 - t) * x + t * noise, t), noise - x)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
            self.epoch += 1
            self.save()
            if self.rank == 0:
                print(f"epoch {self.epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--resume", action="store_true")
    ap.add_argument("--out", default="hollow_ckpt")
    dist.init_process_group("gloo")
    Trainer(ap.parse_args()).fit()
    dist.destroy_process_group()
