import torch
import torch.distributed as dist


class EmbeddingTie:
    """First and last stage hold a copy of the word table each and share its gradient."""

    def __init__(self, weight, first, last):
        self.weight = weight
        self.members = (first, last)
        self.group = dist.new_group([first, last])

    def broadcast(self):
        if self.weight is not None:
            dist.broadcast(self.weight.data, self.members[0], group=self.group)

    def sum_grads(self):
        if self.weight is not None:
            dist.all_reduce(self.weight.grad, group=self.group)


@torch.no_grad()
def clip_model_norm(params, counted, limit):
    """`counted` leaves out the second copy of what two stages hold."""
    square = sum((p.grad.pow(2).sum() for p in counted), torch.zeros(()))
    dist.all_reduce(square)
    norm = square.sqrt()
    scale = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for p in params:
        p.grad.mul_(scale)
    return norm


def send_forward(x, rank):
    dist.send(x.detach().contiguous(), rank + 1)


def recv_forward(shape, rank):
    buf = torch.empty(shape)
    dist.recv(buf, rank - 1)
    return buf.requires_grad_()


def send_backward(g, rank):
    dist.send(g.contiguous(), rank - 1)


def recv_backward(shape, rank):
    buf = torch.empty(shape)
    dist.recv(buf, rank + 1)
    return buf
