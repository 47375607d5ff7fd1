"""Causal attention over a sequence that is split over the processes."""
import torch
import torch.distributed as dist


class RingShift(torch.autograd.Function):
    """Pass a tensor to the next process, its gradient comes back the other way round."""

    @staticmethod
    def forward(ctx, x):
        return _rotate(x, +1)

    @staticmethod
    def backward(ctx, grad):
        return _rotate(grad, -1)


def _rotate(x, hop):
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return x.clone()
    x = x.contiguous()
    out = torch.empty_like(x)
    ops = [dist.P2POp(dist.isend, x, (rank + hop) % world), dist.P2POp(dist.irecv, out, (rank - hop) % world)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    return out


def zigzag_positions(seq, rank, world):
    """Chunk r and chunk 2W-1-r, so that causal work is level."""
    chunks = torch.arange(seq).chunk(2 * world)
    return torch.cat([chunks[rank], chunks[2 * world - 1 - rank]])


def ring_attention(q, k, v, seq):
    """q, k, v: [B, H, S/W, D]. Online softmax over the visiting key/value blocks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    qpos = zigzag_positions(seq, rank, world)
    scale = q.shape[-1] ** -0.5
    kv = torch.stack([k, v])
    m = torch.full(q.shape[:-1], float("-inf"))
    den, num = torch.zeros(q.shape[:-1]), torch.zeros_like(q)
    for hop in range(world):
        kpos = zigzag_positions(seq, (rank - hop) % world, world)
        s = (q @ kv[0].transpose(-1, -2)) * scale
        s = s.masked_fill(kpos[None, :] > qpos[:, None], float("-inf"))
        new_m = torch.maximum(m, s.amax(-1).detach())
        p = (s - new_m[..., None]).exp()
        corr = (m - new_m).exp()
        den = den * corr + p.sum(-1)
        num = num * corr[..., None] + p @ kv[1]
        m = new_m
        if hop < world - 1:
            kv = RingShift.apply(kv)
    return num / den[..., None]
