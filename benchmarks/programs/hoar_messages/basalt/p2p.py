import torch
import torch.distributed as dist


class Link:
    """Neighbour communication of one pipeline stage."""

    def __init__(self, rank, world, shape):
        self.prev = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank < world - 1 else None
        self.shape = shape

    def _exchange(self, ops):
        for req in dist.batch_isend_irecv(ops):
            req.wait()

    def recv_forward(self):
        if self.prev is None:
            return None
        buf = torch.empty(self.shape)
        dist.recv(buf, self.prev)
        return buf.requires_grad_()

    def send_forward(self, out):
        if self.next is not None:
            dist.send(out.detach(), self.next)

    def recv_backward(self):
        if self.next is None:
            return None
        grad = torch.empty(self.shape)
        dist.recv(grad, self.next)
        return grad

    def send_backward(self, grad):
        if self.prev is not None:
            dist.send(grad, self.prev)

    def send_forward_recv_backward(self, out):
        if self.next is None:
            return None
        grad = torch.empty(self.shape)
        self._exchange([dist.P2POp(dist.isend, out.detach(), self.next),
                        dist.P2POp(dist.irecv, grad, self.next)])
        return grad

    def send_backward_recv_forward(self, grad):
        if self.prev is None:
            return None
        buf = torch.empty(self.shape)
        self._exchange([dist.P2POp(dist.isend, grad, self.prev),
                        dist.P2POp(dist.irecv, buf, self.prev)])
        return buf.requires_grad_()
