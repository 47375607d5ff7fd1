import torch
import torch.distributed as dist


def _swap(up, down):
    """Send `up` to the worker above and `down` to the one below; return what they sent."""
    r, w = dist.get_rank(), dist.get_world_size()
    from_above, from_below = torch.zeros_like(down), torch.zeros_like(up)
    ops = []
    if r > 0:
        ops += [dist.P2POp(dist.isend, up.contiguous(), r - 1), dist.P2POp(dist.irecv, from_above, r - 1)]
    if r < w - 1:
        ops += [dist.P2POp(dist.isend, down.contiguous(), r + 1), dist.P2POp(dist.irecv, from_below, r + 1)]
    for q in (dist.batch_isend_irecv(ops) if ops else []):
        q.wait()
    return from_above, from_below


class Halo(torch.autograd.Function):
    """Pad the row dimension with rows of the neighbours (zeros at the border of the image)."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        above, below = _swap(x[:, :, :n], x[:, :, -n:])
        return torch.cat([above, x, below], 2)

    @staticmethod
    def backward(ctx, g):
        n = ctx.n
        above, below = _swap(g[:, :, :n], g[:, :, -n:])
        core = g[:, :, n:-n].clone()
        core[:, :, :n] += above
        core[:, :, -n:] += below
        return core, None
