"""1F1B schedule over blocking receives and asynchronous sends."""
import torch
import torch.distributed as dist


class OneFOneB:
    def __init__(self, stage, shape, loss_fn):
        self.stage, self.shape, self.loss_fn = stage, shape, loss_fn
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.world - 1

    def _forward(self, m, inputs, targets):
        if self.first:
            x = inputs[m]
        else:
            x = torch.empty(self.shape)
            dist.recv(x, src=self.rank - 1, tag=2 * m)
            x.requires_grad_(True)
        y = self.stage(x)
        if self.last:
            y = self.loss_fn(y, targets[m]) / self.n_micro
            self.total += y.item()
        else:
            out = y.detach().contiguous()
            self.sends.append((dist.isend(out, dst=self.rank + 1, tag=2 * m), out))
        self.live.append((m, x, y))

    def _backward(self):
        m, x, y = self.live.pop(0)
        if self.last:
            y.backward()
        else:
            g = torch.empty(self.shape)
            dist.recv(g, src=self.rank + 1, tag=2 * m + 1)
            y.backward(g)
        if not self.first:
            g = x.grad.contiguous()
            self.sends.append((dist.isend(g, dst=self.rank - 1, tag=2 * m + 1), g))

    def run(self, inputs, targets, n_micro):
        self.n_micro, self.total, self.live, self.sends = n_micro, 0.0, [], []
        warm = min(n_micro, self.world - self.rank - 1)
        for m in range(warm):
            self._forward(m, inputs, targets)
        for m in range(warm, n_micro):
            self._forward(m, inputs, targets)
            self._backward()
        while self.live:
            self._backward()
        for work, _ in self.sends:
            work.wait()
        return self.total
