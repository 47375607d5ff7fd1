import logging
import os

import numpy as np
import torch
import torch.distributed.rpc as rpc
import torch.nn.functional as F

from net import build
from server import Server

log = logging.getLogger("worker")


def site_data(index, cfg):
    """Each trainer reads what its own site has collected."""
    rng = np.random.default_rng(cfg.seed)
    means = rng.normal(size=(4, 16)).astype(np.float32)
    rng = np.random.default_rng((cfg.seed, index))
    n = cfg.site_sizes[index]
    y = rng.integers(0, 4, size=n)
    x = means[y] + rng.normal(size=(n, 16)).astype(np.float32)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


class Worker:
    def __init__(self, ref, index, cfg):
        self.ref, self.index, self.cfg = ref, index, cfg
        self.model = build()
        self.x, self.y = site_data(index, cfg)
        self.gen = torch.Generator().manual_seed(cfg.seed + index)
        self.load(rpc.rpc_sync(ref.owner(), Server.pull, args=(ref,)))

    @torch.no_grad()
    def load(self, weights):
        for p, w in zip(self.model.parameters(), weights):
            p.copy_(w)

    def batches(self):
        order = torch.randperm(len(self.x), generator=self.gen)
        return order.split(self.cfg.batch)

    def step(self, idx):
        loss = F.cross_entropy(self.model(self.x[idx]), self.y[idx])
        self.model.zero_grad()
        loss.backward()
        grads = [p.grad for p in self.model.parameters()]
        self.load(rpc.rpc_sync(self.ref.owner(), Server.push, args=(self.ref, grads)))
        return loss.item()

    def run(self):
        for epoch in range(self.cfg.epochs):
            losses = [self.step(idx) for idx in self.batches()]
            log.info("epoch %d: %d batches, loss %.4f", epoch, len(losses),
                     sum(losses) / len(losses))
        return rpc.rpc_sync(self.ref.owner(), Server.leave, args=(self.ref, f"pid {os.getpid()}"))


def run_worker(ref, index, cfg):
    logging.basicConfig(level=logging.INFO, format=f"trainer{index} %(message)s")
    return Worker(ref, index, cfg).run()
