import torch
import torch.distributed as dist


class GatherLayer(torch.autograd.Function):
    """all_gather that hands the gradient of every rank's loss back to the owner of the rows."""

    @staticmethod
    def forward(ctx, x):
        out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.contiguous())
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        stacked = torch.stack(grads)
        dist.all_reduce(stacked)
        return stacked[dist.get_rank()]


def gather_rows(x):
    return torch.cat(GatherLayer.apply(x), dim=0)
