import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("trainer")


def spirals(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.rand(n, generator=g) * 4 + 0.5
    arm = torch.randint(3, (n,), generator=g)
    angle = t * 1.4 + arm * 2.094
    x = torch.stack([t * angle.cos(), t * angle.sin()], 1) + 0.1 * torch.randn(n, 2, generator=g)
    return TensorDataset(x, arm)


class Trainer:
    def __init__(self, cfg, hooks):
        self.cfg, self.hooks = cfg, hooks
        self.rank = dist.get_rank()
        torch.manual_seed(cfg.seed)
        net = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(),
                            nn.Linear(48, 3))
        self.model = DDP(net)
        self.data = spirals(cfg.n, cfg.seed)
        self.sampler = DistributedSampler(self.data, seed=cfg.seed)
        self.loader = DataLoader(self.data, cfg.batch, sampler=self.sampler)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.opt, cfg.epochs * len(self.loader), eta_min=cfg.lr / 50)
        self.last_loss = 0.0

    def say(self, text, *args):
        if self.rank == 0:
            log.info(text, *args)

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                self.sched.step()
                self.last_loss = loss.item()
                for h in self.hooks:
                    h.after_step(self)
            for h in self.hooks:
                h.after_epoch(self, epoch)
