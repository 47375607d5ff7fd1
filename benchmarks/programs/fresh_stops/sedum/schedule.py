"""All forward then all backward over the micro-batches of one batch (GPipe order), blocking point-to-point."""
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class PipeConfig:
    batch: int = 24
    micro: int = 4
    width: int = 32


class Stage:
    def __init__(self, module, cfg, rank, world):
        self.module, self.cfg = module, cfg
        self.rank, self.world = rank, world

    @property
    def first(self):
        return self.rank == 0

    @property
    def last(self):
        return self.rank == self.world - 1

    def count(self, size):
        """How many micro-batches a batch of this size is cut into."""
        return math.ceil(size / self.cfg.micro)

    def _recv(self, src):
        head = torch.zeros(1, dtype=torch.long)
        dist.recv(head, src)
        buf = torch.empty(int(head), self.cfg.width)
        dist.recv(buf, src)
        return buf

    def _send(self, t, dst):
        dist.send(torch.tensor([t.size(0)]), dst)
        dist.send(t.contiguous(), dst)

    def run(self, size, rows=None, labels=None, loss_fn=None):
        """rows on the first stage, labels on the last one, nothing in between."""
        held, losses = [], []
        n = self.count(size)
        for m in range(n):
            cut = slice(m * self.cfg.micro, (m + 1) * self.cfg.micro)
            if self.first:
                x = rows[cut]
            else:
                x = self._recv(self.rank - 1).requires_grad_()
            y = self.module(x)
            if self.last:
                loss = loss_fn(y, labels[cut]) * (labels[cut].size(0) / labels.size(0))
                losses.append(loss)
                held.append((x, loss))
            else:
                self._send(y.detach(), self.rank + 1)
                held.append((x, y))
        for x, y in reversed(held):
            if self.last:
                y.backward()
            else:
                y.backward(self._recv(self.rank + 1))
            if not self.first:
                self._send(x.grad, self.rank - 1)
        return float(sum(l.detach() for l in losses)) if losses else None
