"""Asynchronous parameter server on rank 0."""
import logging
import time

import torch
import torch.distributed as dist

log = logging.getLogger("server")

GRAD, STOP = 0.0, 1.0


class ParameterServer:
    def __init__(self, flat, lr, decay_stale=0.5):
        self.flat = flat
        self.lr = lr
        self.decay_stale = decay_stale
        self.version = 0
        self.momentum = torch.zeros_like(flat)

    def serve(self, workers):
        # message: [kind, version of the parameters it was computed with, gradient ...]
        active = set(workers)
        counts = {w: 0 for w in workers}
        inbox = torch.empty(self.flat.numel() + 2)
        began = time.time()
        while active:
            src = dist.recv(inbox)
            kind, version = inbox[0].item(), int(inbox[1].item())
            if kind == STOP:
                active.discard(src)
                log.info("worker %d left after %d updates", src, counts[src])
                continue
            staleness = self.version - version
            scale = self.decay_stale ** max(staleness - len(active), 0)
            self.momentum.mul_(0.8).add_(inbox[2:], alpha=scale)
            self.flat.add_(self.momentum, alpha=-self.lr)
            self.version += 1
            counts[src] += 1
            reply = torch.cat([torch.tensor([float(self.version)]), self.flat])
            dist.send(reply, dst=src)
            if self.version % 100 == 0:
                log.info("version %d after %.1fs, updates %s", self.version, time.time() - began, counts)
        return counts
