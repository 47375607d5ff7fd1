"""AdamW whose moments are spread over the processes (each one steps its own parameters)."""
import os

import torch
import torch.distributed as dist


class SpreadAdamW:
    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.01):
        self.params = [p for p in params if p.requires_grad]
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        load = [0] * self.world
        self.owner = {}
        for i in sorted(range(len(self.params)), key=lambda i: -self.params[i].numel()):
            who = load.index(min(load))
            self.owner[i] = who
            load[who] += self.params[i].numel()
        mine = [p for i, p in enumerate(self.params) if self.owner[i] == self.rank]
        self.inner = torch.optim.AdamW(mine, lr=lr, betas=betas, weight_decay=weight_decay)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def reduce(self):
        works = []
        for i, p in enumerate(self.params):
            works.append(dist.reduce(p.grad, dst=self.owner[i], async_op=True))
        for w in works:
            w.wait()
        for i, p in enumerate(self.params):
            if self.owner[i] == self.rank:
                p.grad /= self.world
            else:
                p.grad = None

    @torch.no_grad()
    def clip(self, limit):
        sq = torch.zeros((), dtype=torch.float64)
        for p in self.params:
            if p.grad is not None:
                sq += p.grad.double().square().sum()
        dist.all_reduce(sq)
        norm = sq.sqrt().item()
        for p in self.params:
            if p.grad is not None and norm > limit:
                p.grad *= limit / norm
        return norm

    @torch.no_grad()
    def step(self):
        self.inner.step()
        for w in [dist.broadcast(p, src=self.owner[i], async_op=True) for i, p in enumerate(self.params)]:
            w.wait()

    def save(self, folder, step):
        final = os.path.join(folder, f"moments-{step:05d}-{self.rank}of{self.world}.pt")
        torch.save(self.inner.state_dict(), final + ".part")
        os.replace(final + ".part", final)
        return os.path.basename(final)
