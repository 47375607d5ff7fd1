import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ema import ModelEma

log = logging.getLogger("trainer")


def build_model():
    return nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(),
                         nn.Linear(64, 1))


def build_data(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(1024, 12, generator=g) * 2 - 1
    y = (x[:, :4].prod(1) + torch.sin(3 * x[:, 5])).unsqueeze(1)
    return TensorDataset(x, y)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(cfg.seed)
        net = build_model()
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, cfg.epochs)
        self.data = build_data(cfg.seed)
        self.sampler = DistributedSampler(self.data, seed=cfg.seed)
        self.loader = DataLoader(self.data, cfg.batch_size, sampler=self.sampler, drop_last=True)
        self.start_epoch = 0
        self.ema = ModelEma(net, cfg.ema_decay)
        if cfg.resume:
            self.load(cfg.resume)

    def save(self, epoch):
        if self.rank != 0:
            return
        state = {
            "epoch": epoch + 1,
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "ema": self.ema.state_dict(),
        }
        path = os.path.join(self.cfg.out, f"epoch_{epoch + 1:03d}.pt")
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)

    def load(self, path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.ema = ModelEma(self.model.module, self.cfg.ema_decay)
        self.start_epoch = state["epoch"]
        log.info("resumed %s at epoch %d", path, self.start_epoch)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        for x, y in self.loader:
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.ema.update(self.model.module)
        self.scheduler.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self):
        x, y = self.data.tensors
        return [nn.functional.mse_loss(m(x), y).item()
                for m in (self.model.module, self.ema.module)]

    def fit(self):
        for epoch in range(self.start_epoch, self.cfg.epochs):
            self.train_epoch(epoch)
            if self.rank == 0:
                raw, avg = self.evaluate()
                log.info("epoch %d mse %.4f averaged %.4f (%d updates)", epoch, raw, avg,
                         self.ema.updates)
            if (epoch + 1) % self.cfg.save_every == 0:
                self.save(epoch)
            dist.barrier()
