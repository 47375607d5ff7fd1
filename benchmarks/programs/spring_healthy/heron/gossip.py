import math

import torch
import torch.distributed as dist


class PushSum:
    """Directed exponential graph: at round k every node pushes half of its mass 2^(k mod log2 n) hops ahead."""

    def __init__(self, params):
        self.params = list(params)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.hops = [2 ** i for i in range(max(1, int(math.log2(self.world - 1)) + 1))] if self.world > 1 else []
        self.round = 0
        self.weight = 1.0
        n = sum(p.numel() for p in self.params)
        self.outbox, self.inbox = torch.empty(n + 1), torch.empty(n + 1)

    def bias(self):
        """weights -> x, the mass that is pushed around"""
        for p in self.params:
            p.data.mul_(self.weight)

    def debias(self):
        """x -> z = x / w, where gradients are taken"""
        for p in self.params:
            p.data.div_(self.weight)

    def mix(self):
        if not self.hops:
            return
        hop = self.hops[self.round % len(self.hops)]
        self.round += 1
        torch.cat([p.data.reshape(-1) for p in self.params] + [torch.tensor([self.weight])], out=self.outbox)
        self.outbox.mul_(0.5)
        dst, src = (self.rank + hop) % self.world, (self.rank - hop) % self.world
        tx = dist.isend(self.outbox, dst)
        rx = dist.irecv(self.inbox, src)
        tx.wait()
        rx.wait()
        total = self.outbox + self.inbox
        self.weight = total[-1].item()
        for p, chunk in zip(self.params, total[:-1].split([p.numel() for p in self.params])):
            p.data.copy_(chunk.view_as(p))
