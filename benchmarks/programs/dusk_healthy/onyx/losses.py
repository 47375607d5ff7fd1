import torch
import torch.distributed as dist
import torch.nn.functional as F


class GatherLayer(torch.autograd.Function):
    """all_gather whose backward sums the gradients of all the processes for the local part."""

    @staticmethod
    def forward(ctx, x):
        out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.contiguous())
        return torch.stack(out)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad[dist.get_rank()]


def nt_xent(z1, z2, temperature=0.2):
    """Rows of this process against the columns of all of them.

    The mean over local rows, averaged by DDP, is the mean over the global batch: the gather's backward
    sums what the other processes' rows say about our embeddings.
    """
    rank, n = dist.get_rank(), len(z1)
    z1, z2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
    a1, a2 = GatherLayer.apply(z1).flatten(0, 1), GatherLayer.apply(z2).flatten(0, 1)
    keys = torch.cat([a1, a2])
    own = torch.arange(n) + rank * n
    total = len(a1)
    loss = 0.0
    for q, self_col, pos_col in ((z1, own, own + total), (z2, own + total, own)):
        logits = q @ keys.T / temperature
        logits = logits.scatter(1, self_col[:, None], float("-inf"))
        loss = loss + F.cross_entropy(logits, pos_col)
    return loss / 2
