import torch
import torch.distributed as dist

from split import WORK


class Stage:
    """One stage of a ZB-H1 like pipeline: the input part of a backward goes out at once,
    weight parts fill the time in which a stage would have to wait."""

    def __init__(self, module, rank, world, micro, rows, dim, loss_fn):
        self.module, self.rank, self.world, self.micro = module, rank, world, micro
        self.rows, self.dim, self.loss_fn = rows, dim, loss_fn
        self.first, self.last = rank == 0, rank == world - 1

    def _send(self, tensor, dst):
        self.sends.append((dist.isend(tensor, dst), tensor))

    def _forward(self, i, inputs, targets):
        if self.first:
            x = inputs[i]
        else:
            x = torch.empty(self.rows, self.dim)
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
        out = self.module(x)
        if self.last:
            out = self.loss_fn(out, targets[i]) / self.micro
            self.loss += out.item()
        else:
            self._send(out.detach(), self.rank + 1)
        self.live[i] = (x, out)

    def _backward(self, i):
        x, out = self.live.pop(i)
        if self.last:
            out.backward()
        else:
            g = torch.empty_like(out)
            dist.recv(g, self.rank + 1)
            out.backward(g)
        WORK.close()
        if not self.first:
            self._send(x.grad, self.rank - 1)

    def run(self, inputs, targets):
        self.loss, self.live, self.sends = 0.0, {}, []
        warm = min(self.micro, self.world - self.rank)
        for i in range(warm):
            self._forward(i, inputs, targets)
        for i in range(self.micro):
            self._backward(i)
            if warm + i < self.micro:
                self._forward(warm + i, inputs, targets)
            if i >= self.rank:
                WORK.run_one()
        WORK.drain()
        for work, _ in self.sends:
            work.wait()
        return self.loss
