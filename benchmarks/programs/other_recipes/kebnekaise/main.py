import argparse
import copy
import logging
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from semi import Blobs, TwoStreamSampler

log = logging.getLogger("meanteacher")


@dataclass
class Config:
    epochs: int = 5
    n_lab: int = 4
    n_unl: int = 12
    ema: float = 0.98
    max_weight: float = 2.0
    rampup: int = 3
    lr: float = 0.03
    seed: int = 31
    eval_every: int = 1


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def build_net(dim=20, classes=5, width=48):
    return nn.Sequential(nn.Linear(dim, width), nn.LayerNorm(width), nn.GELU(),
                         nn.Linear(width, width), nn.GELU(), nn.Linear(width, classes))


class EMATeacher:
    def __init__(self, net, decay):
        self.net = copy.deepcopy(net)
        self.net.requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, net):
        for t, s in zip(self.net.parameters(), net.parameters()):
            t.lerp_(s, 1 - self.decay)
        for t, s in zip(self.net.buffers(), net.buffers()):
            t.copy_(s)


def consistency_weight(epoch, cfg):
    phase = 1 - min(epoch, cfg.rampup) / cfg.rampup
    return cfg.max_weight * math.exp(-5 * phase * phase)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        set_seed(cfg.seed + self.rank)
        data, self.val = Blobs(seed=1), Blobs(n=200, seed=2, labeled=200)
        self.sampler = TwoStreamSampler(data.labeled, data.unlabeled, cfg.n_lab, cfg.n_unl,
                                        self.rank, self.world, cfg.seed)
        self.loader = DataLoader(data, batch_sampler=self.sampler)
        net = build_net()
        self.teacher = EMATeacher(net, cfg.ema)
        self.student = DDP(net)
        self.opt = torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.epochs * len(self.loader))
        self.step = 0

    def run_epoch(self, epoch):
        self.student.train()
        self.sampler.set_epoch(epoch)
        weight = consistency_weight(epoch, self.cfg)
        sums = torch.zeros(2)
        for xs, xt, y in self.loader:
            with torch.no_grad():
                target = self.teacher.net(xt).softmax(-1)
            logits = self.student(xs)
            sup = F.cross_entropy(logits, y, ignore_index=-1)
            cons = F.mse_loss(logits.softmax(-1), target)
            loss = sup + weight * cons
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            self.step += 1
            self.teacher.update(self.student.module)
            sums += torch.tensor([sup.item(), cons.item()])
        dist.all_reduce(sums)
        sums /= len(self.loader) * self.world
        if self.rank == 0:
            log.info("epoch %d sup %.4f cons %.5f weight %.2f", epoch, *sums.tolist(), weight)

    @torch.no_grad()
    def evaluate(self, net):
        net.eval()
        mine = slice(self.rank, None, self.world)
        hits = (net(self.val.x[mine]).argmax(1) == self.val.y[mine]).sum().float().reshape(1)
        dist.all_reduce(hits)
        net.train()
        return hits.item() / len(self.val)

    def fit(self):
        out = Path("runs") / Path(__file__).parent.name
        for epoch in range(self.cfg.epochs):
            self.run_epoch(epoch)
            s, t = self.evaluate(self.student.module), self.evaluate(self.teacher.net)
            if self.rank == 0:
                log.info("epoch %d student %.3f teacher %.3f", epoch, s, t)
        if self.rank == 0:
            out.mkdir(parents=True, exist_ok=True)
            torch.save({"student": self.student.module.state_dict(),
                        "teacher": self.teacher.net.state_dict(), "step": self.step}, out / "last.pt")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--ema", type=float, default=Config.ema)
    a = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    Trainer(Config(epochs=a.epochs, ema=a.ema)).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
