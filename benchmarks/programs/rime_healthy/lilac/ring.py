"""Ring attention: every worker holds one slice of the sequence, keys and values travel around."""
import torch
import torch.distributed as dist


def _rotate(t):
    r, w = dist.get_rank(), dist.get_world_size()
    out = torch.empty_like(t)
    ops = [dist.P2POp(dist.isend, t, (r + 1) % w), dist.P2POp(dist.irecv, out, (r - 1) % w)]
    for q in dist.batch_isend_irecv(ops):
        q.wait()
    return out


def _bias(t, src):
    """Tokens are striped (worker r holds r, r + w, ...): causal bias against keys of worker `src`."""
    return torch.full((t, t), float("-inf")).triu(1 if src <= dist.get_rank() else 0)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        w, r = dist.get_world_size(), dist.get_rank()
        scale = q.size(-1) ** -0.5
        t = q.size(-2)
        kv = torch.stack([k, v]).contiguous()
        top = torch.full(q.shape[:-1], float("-inf"))
        den = torch.zeros(q.shape[:-1])
        acc = torch.zeros_like(q)
        for i in range(w):
            src = (r - i) % w
            s = q @ kv[0].transpose(-1, -2) * scale + _bias(t, src)
            m = torch.maximum(top, s.amax(-1))
            e = (s - m[..., None]).exp()
            keep = (top - m).exp()
            den = den * keep + e.sum(-1)
            acc = acc * keep[..., None] + e @ kv[1]
            top = m
            if i < w - 1:
                kv = _rotate(kv)
        out = acc / den[..., None]
        ctx.save_for_backward(q, k, v, out, top + den.log())
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, out, lse = ctx.saved_tensors
        w, r = dist.get_world_size(), dist.get_rank()
        scale, t = q.size(-1) ** -0.5, q.size(-2)
        delta = (g * out).sum(-1, keepdim=True)
        dq = torch.zeros_like(q)
        pack = torch.stack([k, v, torch.zeros_like(k), torch.zeros_like(v)]).contiguous()
        for i in range(w):
            src = (r - i) % w
            p = (q @ pack[0].transpose(-1, -2) * scale + _bias(t, src) - lse[..., None]).exp()
            ds = p * (g @ pack[1].transpose(-1, -2) - delta) * scale
            dq += ds @ pack[0]
            pack[2] += ds.transpose(-1, -2) @ q
            pack[3] += p.transpose(-1, -2) @ g
            pack = _rotate(pack)
        return dq, pack[2], pack[3]
