import logging
import time

import torch
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("runner")


class Hook:
    def before_epoch(self, runner):
        pass

    def after_iter(self, runner):
        pass

    def after_epoch(self, runner):
        pass


class SamplerSeedHook(Hook):
    def before_epoch(self, runner):
        sampler = getattr(runner.loader.batch_sampler, "sampler", runner.loader.sampler)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(runner.epoch)


class LrHook(Hook):
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def after_iter(self, runner):
        self.scheduler.step()


class LogHook(Hook):
    def before_epoch(self, runner):
        self.t0, self.sums, self.n = time.time(), {}, 0

    def after_iter(self, runner):
        self.n += 1
        for k, v in runner.losses.items():
            self.sums[k] = self.sums.get(k, 0.0) + v.item()

    def after_epoch(self, runner):
        t = torch.tensor([self.sums[k] for k in sorted(self.sums)]) / self.n
        dist.all_reduce(t)
        t /= dist.get_world_size()
        if dist.get_rank() == 0:
            log.info("epoch %d (%.1fs): %s", runner.epoch, time.time() - self.t0,
                     ", ".join(f"{k} {v:.4f}" for k, v in zip(sorted(self.sums), t.tolist())))


class Runner:
    def __init__(self, model, loader, optimizer, hooks, clip=5.0):
        self.model, self.loader, self.optimizer, self.clip = model, loader, optimizer, clip
        self.hooks = hooks
        self.epoch = self.iter = 0
        self.losses = {}

    def call(self, stage):
        for h in self.hooks:
            getattr(h, stage)(self)

    def run(self, epochs):
        for self.epoch in range(epochs):
            self.model.train()
            self.call("before_epoch")
            for images, targets in self.loader:
                self.losses = self.model(images, targets)
                loss = sum(self.losses.values())
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
                self.optimizer.step()
                self.iter += 1
                self.call("after_iter")
            self.call("after_epoch")
