import torch
import torch.distributed as dist


class OneFOneB:
    """Non-interleaved 1F1B over blocking receives and buffered sends."""

    def __init__(self, stage, rank, world, shape, micro):
        self.stage, self.rank, self.world = stage, rank, world
        self.shape, self.micro = shape, micro
        self.first, self.last = rank == 0, rank == world - 1
        self.pending = []

    def _send(self, t, peer):
        t = t.detach().contiguous()
        self.pending.append((dist.isend(t, peer), t))

    def _recv(self, peer):
        buf = torch.empty(self.shape)
        dist.recv(buf, peer)
        return buf

    def _forward(self, xs, ys, i):
        inp = xs[i] if self.first else self._recv(self.rank - 1).requires_grad_()
        out = self.stage(inp)
        if self.last:
            out = torch.nn.functional.cross_entropy(out, ys[i]) / self.micro
        else:
            self._send(out, self.rank + 1)
        return inp, out

    def _backward(self, inp, out):
        out.backward(None if self.last else self._recv(self.rank + 1))
        if not self.first:
            self._send(inp.grad, self.rank - 1)
        return out.item() if self.last else 0.0

    def step(self, x, y):
        xs, ys = x.chunk(self.micro), y.chunk(self.micro)
        warm = min(self.world - self.rank - 1, self.micro)
        live, loss = [], 0.0
        for i in range(warm):
            live.append(self._forward(xs, ys, i))
        for i in range(warm, self.micro):
            live.append(self._forward(xs, ys, i))
            loss += self._backward(*live.pop(0))
        while live:
            loss += self._backward(*live.pop(0))
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()
        return loss
