"""Hand-written GPipe schedule over point-to-point sends."""
from datetime import timedelta

import torch
import torch.distributed as dist


class PipeTopology:
    def __init__(self):
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.is_first = self.rank == 0
        self.is_last = self.rank == self.size - 1
        self.embedding_group = None
        self.control_group = None

    def init_groups(self):
        self.init_embedding_group()
        self.control_group = dist.new_group(backend="gloo", timeout=timedelta(minutes=10))

    def init_embedding_group(self):
        """First and last stage hold the tied table; its gradient is summed over both."""
        if self.size == 1:
            return
        ranks = [0, self.size - 1]
        if self.rank in ranks:
            self.embedding_group = dist.new_group(ranks)

    @property
    def prev(self):
        return self.rank - 1

    @property
    def next(self):
        return self.rank + 1


class GPipe:
    """All forwards, then all backwards. Activations are [mb, T, C] float32."""

    def __init__(self, topo: PipeTopology, stage, act_shape, n_micro: int, loss_fn):
        self.topo, self.stage, self.loss_fn = topo, stage, loss_fn
        self.act_shape, self.n_micro = act_shape, n_micro

    def _recv(self, src):
        buf = torch.empty(self.act_shape)
        dist.recv(buf, src)
        return buf

    def step(self, tokens: torch.Tensor) -> float:
        t = self.topo
        micro = tokens.chunk(self.n_micro)
        inputs, outputs, losses = [], [], []
        for mb in micro:
            if t.is_first:
                x = mb[:, :-1]
            else:
                x = self._recv(t.prev).requires_grad_()
            y = self.stage(x)
            if t.is_last:
                loss = self.loss_fn(y, mb[:, 1:]) / self.n_micro
                losses.append(loss.detach())
                outputs.append(loss)
            else:
                dist.send(y.detach(), t.next)
                outputs.append(y)
            inputs.append(x)
        for x, y in zip(inputs, outputs):
            if t.is_last:
                y.backward()
            else:
                y.backward(self._recv(t.next))
            if not t.is_first:
                dist.send(x.grad, t.prev)
        total = torch.stack(losses).sum() if losses else torch.zeros(())
        return total.item()
