"""One-forward-one-backward schedule over point-to-point messages."""
import torch
import torch.distributed as dist


class Stage:
    def __init__(self, module, rank, world, act_shape):
        self.module, self.rank, self.world, self.shape = module, rank, world, act_shape
        self.first, self.last = rank == 0, rank == world - 1
        self.pending = []

    def _recv_act(self):
        buf = torch.empty(self.shape)
        dist.recv(buf, src=self.rank - 1)
        return buf.requires_grad_()

    def forward(self, micro, target, loss_fn, sends):
        x = micro if self.first else self._recv_act()
        y = self.module(x)
        if self.last:
            y = loss_fn(y, target)
        else:
            out = y.detach().contiguous()
            sends.append((dist.isend(out, dst=self.rank + 1), out))
        self.pending.append((x, y))
        return y

    def backward(self, sends, scale):
        x, y = self.pending.pop(0)
        if self.last:
            (y * scale).backward()
        else:
            g = torch.empty(self.shape)
            dist.recv(g, src=self.rank + 1)
            y.backward(g)
        if not self.first:
            g = x.grad.contiguous()
            sends.append((dist.isend(g, dst=self.rank - 1), g))

    def run(self, micros, targets, loss_fn):
        m, sends, losses = len(micros), [], []
        warm = min(self.world - self.rank - 1, m)
        for i in range(warm):
            self.forward(micros[i], targets[i], loss_fn, sends)
        for i in range(warm, m):
            out = self.forward(micros[i], targets[i], loss_fn, sends)
            if self.last:
                losses.append(out.detach())
            self.backward(sends, 1.0 / m)
        for _ in range(warm):
            self.backward(sends, 1.0 / m)
        for work, _ in sends:
            work.wait()
        return torch.stack(losses).mean() if losses else None
