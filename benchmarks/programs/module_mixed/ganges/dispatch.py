import torch
import torch.distributed as dist


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv, group):
        ctx.send, ctx.recv, ctx.group = send, recv, group
        out = x.new_empty(sum(recv), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), recv, send, group=group)
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(sum(ctx.send), g.size(1))
        dist.all_to_all_single(out, g.contiguous(), ctx.send, ctx.recv, group=ctx.group)
        return out, None, None, None


def route(x, expert, n_local, group=None):
    """Sends rows to the ranks that hold their expert; returns a way back."""
    world = dist.get_world_size(group)
    order = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=n_local * world).view(world, n_local)
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts, group=group)
    send, recv = counts.sum(1).tolist(), got.sum(1).tolist()
    rows = AllToAll.apply(x[order], send, recv, group)
    local = torch.cat([torch.repeat_interleave(torch.arange(n_local), got[r]) for r in range(world)])

    def back(y):
        y = AllToAll.apply(y, recv, send, group)
        out = torch.empty_like(y)
        return out.index_copy(0, order, y)

    return rows, local, back
