import math

import torch
import torch.distributed as dist


class RingComm:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.send_to = (self.rank + 1) % self.world
        self.recv_from = (self.rank - 1) % self.world
        self._reqs = []

    def rotate(self, tensor):
        out = torch.empty_like(tensor)
        ops = [dist.P2POp(dist.isend, tensor, self.send_to),
               dist.P2POp(dist.irecv, out, self.recv_from)]
        self._reqs += dist.batch_isend_irecv(ops)
        return out

    def wait(self):
        for r in self._reqs:
            r.wait()
        self._reqs.clear()


def _block(q, k, v, causal):
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        n = s.shape[-1]
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
    lse = torch.logsumexp(s, -1, keepdim=True)
    return torch.exp(s - lse) @ v, lse


def _merge(out, lse, new_out, new_lse):
    if out is None:
        return new_out, new_lse
    total = torch.logaddexp(lse, new_lse)
    return out * torch.exp(lse - total) + new_out * torch.exp(new_lse - total), total


@torch.no_grad()
def ring_attention(q, k, v):
    """Causal attention over a sequence that is sharded contiguously over the ranks."""
    comm = RingComm()
    kv = torch.stack([k, v])
    out = lse = None
    for step in range(comm.world):
        owner = (comm.rank - step) % comm.world
        if owner > comm.rank:
            # only keys from the future are left
            break
        if step + 1 != comm.world:
            nxt = comm.rotate(kv)
        o, l = _block(q, kv[0], kv[1], causal=step == 0)
        out, lse = _merge(out, lse, o, l)
        if step + 1 != comm.world:
            comm.wait()
            kv = nxt
    return out
