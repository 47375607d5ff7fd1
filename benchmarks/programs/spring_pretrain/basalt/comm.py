import torch
import torch.distributed as dist


class PipeComm:
    """Point-to-point helpers between neighbouring pipeline stages."""

    def __init__(self, shape, dtype=torch.float32):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.prev = self.rank - 1 if self.rank > 0 else None
        self.next = self.rank + 1 if self.rank < self.size - 1 else None
        self.shape, self.dtype = shape, dtype

    def _buffer(self):
        return torch.empty(self.shape, dtype=self.dtype)

    def _recv(self, peer):
        if peer is None:
            return None
        buf = self._buffer()
        dist.recv(buf, peer)
        return buf

    def _send(self, tensor, peer):
        if peer is not None:
            dist.send(tensor.contiguous(), peer)

    def _exchange(self, tensor, peer):
        if peer is None:
            return None
        buf = self._buffer()
        dist.send(tensor.contiguous(), peer)
        dist.recv(buf, peer)
        return buf

    def recv_forward(self):
        act = self._recv(self.prev)
        return act.requires_grad_() if act is not None else None

    def recv_backward(self):
        return self._recv(self.next)

    def send_forward(self, output):
        if self.next is not None:
            self._send(output.detach(), self.next)

    def send_backward(self, grad):
        if self.prev is not None:
            self._send(grad, self.prev)

    def send_forward_recv_backward(self, output):
        return self._exchange(output.detach(), self.next)

    def send_backward_recv_forward(self, grad):
        act = self._exchange(grad, self.prev)
        return act.requires_grad_() if act is not None else None
