"""Tagged point-to-point transfers between neighbouring stages."""
import torch
import torch.distributed as dist

GRAD = 1 << 20


class Link:
    def __init__(self, rank, world, steps_per_epoch, n_micro, shape):
        self.prev = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank + 1 < world else None
        self.steps_per_epoch = steps_per_epoch
        self.n_micro = n_micro
        self.shape = shape
        self._pending = []

    def tag(self, epoch, step, micro):
        return (epoch * self.steps_per_epoch + step) * self.n_micro + micro

    def push_forward(self, t, tag):
        self._pending.append((dist.isend(t, self.next, tag=tag), t))

    def pull_forward(self, tag):
        t = torch.empty(self.shape)
        dist.recv(t, self.prev, tag=tag)
        return t.requires_grad_()

    def push_backward(self, t, tag):
        self._pending.append((dist.isend(t, self.prev, tag=GRAD + tag), t))

    def pull_backward(self, tag):
        t = torch.empty(self.shape)
        dist.recv(t, self.next, tag=GRAD + tag)
        return t

    def drain(self):
        for work, _ in self._pending:
            work.wait()
        self._pending.clear()
