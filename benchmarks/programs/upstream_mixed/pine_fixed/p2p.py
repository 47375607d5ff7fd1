"""Point-to-point exchange between neighbouring stages; sequence lengths vary from batch to batch."""
import torch
import torch.distributed as dist


class Channel:
    def __init__(self, rank, world):
        self.prev = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank < world - 1 else None

    def _send(self, tensor, peer):
        shape = torch.tensor(list(tensor.shape), dtype=torch.long)
        dist.send(shape, peer)
        dist.send(tensor.contiguous(), peer)

    def _recv(self, peer, dims=3):
        shape = torch.empty(dims, dtype=torch.long)
        dist.recv(shape, peer)
        tensor = torch.empty(shape.tolist())
        dist.recv(tensor, peer)
        return tensor

    def recv_forward(self):
        return None if self.prev is None else self._recv(self.prev)

    def send_forward(self, out):
        if self.next is not None:
            self._send(out, self.next)

    def recv_backward(self):
        return None if self.next is None else self._recv(self.next)

    def send_backward(self, grad):
        if self.prev is not None:
            self._send(grad, self.prev)

    def send_forward_recv_backward(self, out):
        if self.next is None:
            return None
        self._send(out, self.next)
        return self._recv(self.next)

    def send_backward_recv_forward(self, grad):
        if self.prev is None:
            return None
        received = self._recv(self.prev)
        self._send(grad, self.prev)
        return received
