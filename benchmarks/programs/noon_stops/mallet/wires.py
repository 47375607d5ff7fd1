import torch
import torch.distributed as dist

FORWARD, BACKWARD, META = 0, 1 << 12, 1 << 13


class Wires:
    """Non-blocking sends with one tag per micro-batch; lengths travel ahead of the data."""

    def __init__(self, stage, stages, dim):
        self.stage, self.stages, self.dim = stage, stages, dim
        self.first, self.last = stage == 0, stage == stages - 1
        self.pending = []

    def _post(self, tensor, dst, tag):
        self.pending.append((dist.isend(tensor, dst=dst, tag=tag), tensor))

    def push_activation(self, y, micro):
        y = y.detach().contiguous()
        self._post(torch.tensor(y.shape[:2]), self.stage + 1, META + micro)
        self._post(y, self.stage + 1, FORWARD + micro)

    def pull_activation(self, micro):
        shape = torch.empty(2, dtype=torch.int64)
        dist.recv(shape, src=self.stage - 1, tag=META + micro)
        x = torch.empty(*shape.tolist(), self.dim)
        dist.recv(x, src=self.stage - 1, tag=FORWARD + micro)
        return x.requires_grad_()

    def push_gradient(self, g, micro):
        self._post(g.contiguous(), self.stage - 1, BACKWARD + micro)

    def pull_gradient(self, like, micro):
        g = torch.empty_like(like)
        dist.recv(g, src=self.stage + 1, tag=BACKWARD + micro)
        return g

    def flush(self):
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()
