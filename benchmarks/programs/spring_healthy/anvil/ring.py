import torch
import torch.distributed as dist


def rotate(tensors):
    """Hand the block to the next rank and take the one of the previous rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return tensors
    flat = torch.cat([t.reshape(-1) for t in tensors])
    into = torch.empty_like(flat)
    ops = [dist.P2POp(dist.isend, flat, (rank + 1) % world), dist.P2POp(dist.irecv, into, (rank - 1) % world)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [c.view_as(t) for c, t in zip(into.split([t.numel() for t in tensors]), tensors)]


def scores(q, k, same_block):
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if same_block:
        n = q.shape[-2]
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
    return s


class RingAttention(torch.autograd.Function):
    """Causal attention over a sequence cut into contiguous blocks, one a rank.

    Blocks from later positions are passed on unused, so early ranks compute less.
    """

    @staticmethod
    def forward(ctx, q, k, v):
        rank, world = dist.get_rank(), dist.get_world_size()
        acc, lse = torch.zeros_like(q), torch.full(q.shape[:-1] + (1,), float("-inf"))
        block = [k, v]
        for hop in range(world):
            owner = (rank - hop) % world
            if owner <= rank:
                s = scores(q, block[0], owner == rank)
                part = s.logsumexp(-1, keepdim=True)
                new = torch.logaddexp(lse, part)
                acc = acc * (lse - new).exp() + (s - new).exp() @ block[1]
                lse = new
            if hop < world - 1:
                block = rotate(block)
        ctx.save_for_backward(q, k, v, acc, lse)
        return acc

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        rank, world = dist.get_rank(), dist.get_world_size()
        delta = (grad * out).sum(-1, keepdim=True)
        dq = torch.zeros_like(q)
        block = [k, v, torch.zeros_like(k), torch.zeros_like(v)]
        for hop in range(world):
            owner = (rank - hop) % world
            if owner <= rank:
                kb, vb, dk, dv = block
                p = (scores(q, kb, owner == rank) - lse).exp()
                ds = p * (grad @ vb.transpose(-1, -2) - delta) * q.shape[-1] ** -0.5
                dq = dq + ds @ kb
                block = [kb, vb, dk + ds.transpose(-1, -2) @ q, dv + p.transpose(-1, -2) @ grad]
            block = rotate(block)           # after the last hop the gradients are home again
        return dq, block[2], block[3]
