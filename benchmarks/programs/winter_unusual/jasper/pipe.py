import torch
import torch.distributed as dist


class OneFOneB:
    """1F1B schedule over point-to-point sends; rank i holds stage i."""

    def __init__(self, stage, loss_fn, micro, act_shape):
        self.stage, self.loss_fn, self.micro, self.shape = stage, loss_fn, micro, act_shape
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.world - 1
        self.pending = []

    def _forward(self, x):
        if not self.first:
            x = torch.empty(self.shape)
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
        y = self.stage(x)
        if not self.last:
            buf = y.detach().contiguous()
            self.pending.append((dist.isend(buf, self.rank + 1), buf))
        return x, y

    def _backward(self, x, y, target, total):
        if self.last:
            loss = self.loss_fn(y, target) / self.micro
            loss.backward()
            total += loss.detach()
        else:
            g = torch.empty(self.shape)
            dist.recv(g, self.rank + 1)
            y.backward(g)
        if not self.first:
            self.pending.append((dist.isend(x.grad, self.rank - 1), x.grad))

    def step(self, inputs, targets):
        total = torch.zeros(())
        live = []
        warm = min(self.world - self.rank - 1, self.micro)
        for i in range(warm):
            live.append(self._forward(inputs[i]))
        for i in range(warm, self.micro):
            live.append(self._forward(inputs[i]))
            self._backward(*live.pop(0), targets[i - warm], total)
        for i in range(self.micro - warm, self.micro):
            self._backward(*live.pop(0), targets[i], total)
        for w, _ in self.pending:
            w.wait()
        self.pending.clear()
        return total
