import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from ema import ModelEMA


class Engine:
    def __init__(self, build, loader, workdir, lr=3e-3):
        torch.manual_seed(15)
        core = build()
        self.model, self.loader, self.workdir = DDP(core), loader, workdir
        self.optim = torch.optim.AdamW(core.parameters(), lr=lr)
        self.sched = torch.optim.lr_scheduler.StepLR(self.optim, 10, 0.7)
        self.ema = ModelEMA(core)
        self.step = self.epoch = 0

    @property
    def path(self):
        return os.path.join(self.workdir, "last.ckpt")

    def save(self):
        if dist.get_rank() == 0:
            torch.save({
                "model": self.model.module.state_dict(),
                "optim": self.optim.state_dict(),
                "sched": self.sched.state_dict(),
                "ema": self.ema.state_dict(),
                "progress": (self.step, self.epoch),
                "rng": torch.get_rng_state(),
            }, self.path + ".tmp")
            os.replace(self.path + ".tmp", self.path)
        dist.barrier()

    def resume(self):
        ckpt = torch.load(self.path, map_location="cpu")
        self.model.module.load_state_dict(ckpt["model"])
        self.optim.load_state_dict(ckpt["optim"])
        self.sched.load_state_dict(ckpt["sched"])
        self.ema.load_state_dict(ckpt["ema"])
        self.step, self.epoch = ckpt["progress"]
        torch.set_rng_state(ckpt["rng"])

    def fit(self, epochs):
        while self.epoch < epochs:
            self.loader.sampler.set_epoch(self.epoch)
            for x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
                self.sched.step()
                self.ema.update(self.model.module)
                self.step += 1
            self.epoch += 1
            self.validate()
            self.save()

    @torch.no_grad()
    def validate(self):
        self.ema.module.eval()
        right = torch.zeros(2)
        for x, y in self.loader:
            right += torch.tensor([(self.ema.module(x).argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(right)
        if dist.get_rank() == 0:
            print(f"epoch {self.epoch} step {self.step} ema accuracy {right[0] / right[1]:.4f}", flush=True)
