import math
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

OUT = "gantry_run"
HYP = dict(lr0=0.1, momentum=0.9, warmup=10, epochs=5, batch=8)


def cosine_with_warmup(step, total, warmup):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


class Runner:
    def __init__(self, resume):
        self.rank = dist.get_rank()
        g = torch.Generator().manual_seed(1)
        x = torch.randn(192, 13, generator=g)
        self.data = TensorDataset(x, (x[:, :4].sum(1) > 0).long())
        self.sampler = DistributedSampler(self.data)
        self.loader = DataLoader(self.data, HYP["batch"], sampler=self.sampler)
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(13, 20), nn.ReLU(), nn.Linear(20, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=HYP["lr0"], momentum=HYP["momentum"], nesterov=True)
        total = HYP["epochs"] * len(self.loader)
        self.start_epoch = 0
        self.scheduler = self.make_scheduler(total)
        if resume:
            self.load()
        self.model = DDP(self.net)

    def make_scheduler(self, total):
        return LambdaLR(self.optimizer, lambda s: cosine_with_warmup(s, total, HYP["warmup"]))

    def load(self):
        ckpt = torch.load(os.path.join(OUT, "last.pt"), map_location="cpu")
        self.net.load_state_dict(ckpt["model"])
        self.optimizer.load_state_dict(ckpt["optimizer"])
        self.start_epoch = ckpt["epoch"] + 1
        self.scheduler.load_state_dict(ckpt["scheduler"])

    def save(self, epoch):
        if self.rank == 0:
            os.makedirs(OUT, exist_ok=True)
            state = dict(epoch=epoch, model=self.net.state_dict(), optimizer=self.optimizer.state_dict(),
                         scheduler=self.scheduler.state_dict())
            torch.save(state, os.path.join(OUT, "last.pt"))
        dist.barrier()

    def train(self, stop):
        for epoch in range(self.start_epoch, stop):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
            self.save(epoch)
            if self.rank == 0:
                print(f"epoch {epoch} loss {loss.item():.4f} lr {self.scheduler.get_last_lr()[0]:.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    resume = "--resume" in sys.argv
    Runner(resume).train(HYP["epochs"] if resume else 3)
    dist.destroy_process_group()
