import logging
import time

import torch
import torch.distributed as dist
from torch import nn

from server import GRAD, STOP

log = logging.getLogger("worker")


class Worker:
    def __init__(self, model, rank, seconds, pause):
        self.model = model
        self.rank = rank
        self.seconds = seconds
        self.pause = pause
        self.version = 0
        self.gen = torch.Generator().manual_seed(rank)
        self.teacher = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))

    def batch(self, size=64):
        x = torch.randn(size, 24, generator=self.gen)
        return x, (x @ self.teacher).argmax(1)

    def run(self):
        numel = sum(p.numel() for p in self.model.parameters())
        reply = torch.empty(numel + 1)
        end = time.monotonic() + self.seconds
        done, last = 0, float("nan")
        while time.monotonic() < end:
            x, y = self.batch()
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.model.zero_grad()
            loss.backward()
            grad = nn.utils.parameters_to_vector([p.grad for p in self.model.parameters()])
            dist.send(torch.cat([torch.tensor([GRAD, float(self.version)]), grad]), dst=0)
            dist.recv(reply, src=0)
            self.version = int(reply[0].item())
            nn.utils.vector_to_parameters(reply[1:].clone(), self.model.parameters())
            done, last = done + 1, loss.item()
            time.sleep(self.pause)
        dist.send(torch.cat([torch.tensor([STOP, float(self.version)]), torch.zeros(numel)]), dst=0)
        log.info("worker %d: %d updates, last loss %.4f", self.rank, done, last)
