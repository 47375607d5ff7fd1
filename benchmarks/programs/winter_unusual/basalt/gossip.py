import math

import torch
import torch.distributed as dist


class OnePeerGossip:
    """One-peer exponential graph (Ying et al. 2021): at step t rank r averages with the rank 2^(t mod log2 n) behind it."""

    def __init__(self, params):
        self.params = [p for p in params]
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        assert self.world & (self.world - 1) == 0, "power of two expected"
        self.hops = [2 ** i for i in range(max(1, int(math.log2(self.world))))]
        n = sum(p.numel() for p in self.params)
        self.out, self.inc = torch.empty(n), torch.empty(n)
        self.t = 0
        self._work = None

    def _views(self, flat):
        i = 0
        for p in self.params:
            yield p, flat[i : i + p.numel()].view_as(p)
            i += p.numel()

    @torch.no_grad()
    def start(self):
        for p, v in self._views(self.out):
            v.copy_(p)
        hop = self.hops[self.t % len(self.hops)]
        dst, src = (self.rank + hop) % self.world, (self.rank - hop) % self.world
        self._work = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, self.out, dst),
            dist.P2POp(dist.irecv, self.inc, src),
        ])
        self.t += 1

    @torch.no_grad()
    def finish(self):
        for w in self._work:
            w.wait()
        for p, v in self._views(self.inc):
            p.lerp_(v, 0.5)

    @torch.no_grad()
    def consensus(self):
        for p, v in self._views(self.out):
            v.copy_(p)
        mean = self.out.clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        dev = (self.out - mean).norm()
        for p, v in self._views(mean):
            p.copy_(v)
        return dev / mean.norm()
