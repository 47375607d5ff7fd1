"""Adam whose moments are cut in equal slices, one a rank (ZeRO stage 1 on a flat buffer)."""
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class SlicedAdam:
    def __init__(self, params, lr, rank, world, betas=(0.9, 0.99), eps=1e-8):
        self.params, self.lr, self.betas, self.eps = params, lr, betas, eps
        self.rank, self.world = rank, world
        self.numel = sum(p.numel() for p in params)
        self.width = -(-self.numel // world)
        self.m = torch.zeros(self.width)
        self.v = torch.zeros(self.width)
        self.t = 0

    def _padded(self, vec):
        return torch.cat([vec, vec.new_zeros(self.width * self.world - self.numel)])

    def _gather(self, piece):
        full = [torch.empty_like(piece) for _ in range(self.world)]
        dist.all_gather(full, piece)
        return torch.cat(full)

    def _mine(self, full):
        return full[self.rank * self.width:(self.rank + 1) * self.width]

    @torch.no_grad()
    def step(self):
        grads = self._padded(torch.cat([p.grad.flatten() for p in self.params]))
        dist.all_reduce(grads)
        grads /= self.world
        theta = self._padded(parameters_to_vector(self.params))
        g, w = self._mine(grads), self._mine(theta).clone()
        self.t += 1
        b1, b2 = self.betas
        self.m.mul_(b1).add_(g, alpha=1 - b1)
        self.v.mul_(b2).addcmul_(g, g, value=1 - b2)
        mhat = self.m / (1 - b1 ** self.t)
        vhat = self.v / (1 - b2 ** self.t)
        w -= self.lr * mhat / (vhat.sqrt() + self.eps)
        vector_to_parameters(self._gather(w)[:self.numel], self.params)

    def export(self):
        return {"t": self.t, "m": self.m.clone(), "v": self.v.clone()}

    def import_(self, state):
        self.t = state["t"]
        self.m.copy_(state["m"])
        self.v.copy_(state["v"])
