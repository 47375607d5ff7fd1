"""1F1B pipeline engine on point-to-point calls."""
from collections import deque

import torch
import torch.distributed as dist


class OneFOneB:
    def __init__(self, stage, micro_batch: int, act_shape: tuple, loss_fn):
        self.stage, self.loss_fn = stage, loss_fn
        self.micro_batch = micro_batch
        self.act_shape = (micro_batch, *act_shape)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.size - 1

    def _recv(self, peer):
        buf = torch.empty(self.act_shape)
        dist.recv(buf, src=peer)
        return buf

    def _send(self, t, peer):
        t = t.contiguous()
        self.pending.append((dist.isend(t, dst=peer), t))

    def _forward(self, inputs, targets, scale):
        x = inputs.popleft() if self.first else self._recv(self.rank - 1).requires_grad_()
        y = self.stage(x)
        if self.last:
            loss = self.loss_fn(y, targets.popleft()) * scale
            self.loss_sum += loss.item()
            y = loss
        else:
            self._send(y.detach(), self.rank + 1)
        self.live.append((x, y))

    def _backward(self):
        x, y = self.live.popleft()
        if self.last:
            y.backward()
        else:
            y.backward(self._recv(self.rank + 1))
        if not self.first:
            self._send(x.grad, self.rank - 1)

    def run(self, inputs=None, targets=None) -> float:
        """One optimizer step worth of micro-batches; returns the loss on the last stage."""
        self.live, self.pending, self.loss_sum = deque(), [], 0.0
        inputs = deque(inputs.split(self.micro_batch)) if inputs is not None else deque()
        targets = deque(targets.split(self.micro_batch)) if targets is not None else deque()
        count = torch.tensor([len(inputs)])
        dist.broadcast(count, src=0)
        total = int(count)
        warmup = min(self.size - self.rank - 1, total)
        for _ in range(warmup):
            self._forward(inputs, targets, 1.0 / total)
        for _ in range(total - warmup):
            self._forward(inputs, targets, 1.0 / total)
            self._backward()
        for _ in range(warmup):
            self._backward()
        for work, _ in self.pending:
            work.wait()
        return self.loss_sum
