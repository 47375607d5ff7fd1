import copy
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Averaged:
    """Exponential moving average of the weights."""

    def __init__(self, module, decay):
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, module):
        for mine, theirs in zip(self.module.state_dict().values(), module.state_dict().values()):
            mine.lerp_(theirs, 1 - self.decay)


class Runner:
    def __init__(self, cfg, build, train_set, valid_set):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.main = self.rank == 0
        torch.manual_seed(cfg.seed)
        self.core = build()
        self.model = DDP(self.core)
        self.average = Averaged(self.core, cfg.ema_decay)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr,
                                           weight_decay=cfg.weight_decay)
        self.sampler = DistributedSampler(train_set, shuffle=True, seed=cfg.seed)
        self.train_loader = DataLoader(train_set, cfg.batch_size, sampler=self.sampler,
                                       drop_last=True)
        self.valid_loader = DataLoader(valid_set, 64,
                                       sampler=DistributedSampler(valid_set, shuffle=False))
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, cfg.epochs * len(self.train_loader), eta_min=cfg.lr * 0.05)
        self.epoch = 0

    def say(self, text):
        if self.main:
            print(text, flush=True)

    def save(self, path: Path):
        if self.main:
            torch.save({
                "model": self.core.state_dict(),
                "average": self.average.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "epoch": self.epoch,
            }, path)
        dist.barrier()

    def resume(self, path: Path):
        state = torch.load(path, map_location="cpu")
        self.core.load_state_dict(state["model"])
        self.average.module.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch = state["epoch"]
        self.say(f"resumed at epoch {self.epoch}, lr {self.scheduler.get_last_lr()[0]:.2e}")

    def train_epoch(self):
        self.model.train()
        self.sampler.set_epoch(self.epoch)
        total = 0.0
        for x, y in self.train_loader:
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
            self.optimizer.step()
            self.scheduler.step()
            self.average.update(self.core)
            total += loss.item()
        self.epoch += 1
        return total / len(self.train_loader)

    @torch.no_grad()
    def evaluate(self, module):
        module.eval()
        counts = torch.zeros(2)
        for x, y in self.valid_loader:
            counts += torch.tensor([(module(x).argmax(-1) == y).sum().item(), len(y)])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    def fit(self, until):
        while self.epoch < until:
            loss = self.train_epoch()
            plain, averaged = self.evaluate(self.core), self.evaluate(self.average.module)
            self.say(f"epoch {self.epoch}: loss {loss:.4f} acc {plain:.3f} "
                     f"acc(avg) {averaged:.3f} lr {self.scheduler.get_last_lr()[0]:.2e}")
