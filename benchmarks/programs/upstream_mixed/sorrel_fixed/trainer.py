from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from scheduler import ParamScheduler


@dataclass
class Config:
    path: str
    iterations: int = 40
    save_at: int = 16
    global_batch: int = 32
    max_lr: float = 5e-3
    min_lr: float = 5e-4


class AppState:
    def __init__(self, trainer):
        self.trainer = trainer

    def state_dict(self):
        model, optim = get_state_dict(self.trainer.model, self.trainer.optimizer)
        return {"model": model, "optim": optim, "scheduler": self.trainer.scheduler.state_dict(),
                "iteration": self.trainer.iteration}

    def load_state_dict(self, state):
        set_state_dict(self.trainer.model, self.trainer.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optim"])
        self.trainer.scheduler.load_state_dict(state["scheduler"])
        self.trainer.iteration = state["iteration"]


class Trainer:
    def __init__(self, cfg, resume):
        self.cfg = cfg
        torch.manual_seed(23)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 1)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.max_lr)
        total = cfg.iterations * cfg.global_batch
        self.scheduler = ParamScheduler(self.optimizer, cfg.max_lr, cfg.min_lr, total // 10, total)
        self.iteration = 0
        if resume:
            self.load()

    def save(self):
        dcp.save({"app": AppState(self)}, checkpoint_id=self.cfg.path)

    def load(self):
        state = {"app": AppState(self).state_dict()}
        dcp.load(state, checkpoint_id=self.cfg.path)
        AppState(self).load_state_dict(state["app"])
        return self.iteration

    def batch(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        gen = torch.Generator().manual_seed(10_000 * rank + self.iteration)
        x = torch.randn(self.cfg.global_batch // world, 12, generator=gen)
        return x, (x[:, :4].prod(1, keepdim=True)).tanh()

    def run(self, until):
        while self.iteration < until:
            x, y = self.batch()
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.iteration += 1
            self.scheduler.step(increment=self.cfg.global_batch)
            if dist.get_rank() == 0 and self.iteration % 8 == 0:
                lr = self.optimizer.param_groups[0]["lr"]
                print(f"iteration {self.iteration} lr {lr:.2e} loss {loss.item():.4f}", flush=True)
