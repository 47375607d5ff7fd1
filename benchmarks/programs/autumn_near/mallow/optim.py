import torch
import torch.distributed as dist


class PartitionedMomentum:
    """Nesterov momentum whose velocity is partitioned over ranks; parameters stay whole."""

    def __init__(self, net, lr, mu=0.95):
        self.ps = list(net.parameters())
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.lr, self.mu = lr, mu
        n = sum(p.numel() for p in self.ps)
        self.width = -(-n // self.world)
        self.pad = self.width * self.world - n
        self.velocity = torch.zeros(self.width)

    def flat(self, ts):
        v = torch.cat([t.reshape(-1) for t in ts])
        return torch.nn.functional.pad(v, (0, self.pad)) if self.pad else v

    @torch.no_grad()
    def step(self):
        g = self.flat([p.grad for p in self.ps])
        dist.all_reduce(g)
        g = g.div_(self.world).view(self.world, -1)[self.rank]
        self.velocity.mul_(self.mu).add_(g)
        update = self.velocity * self.mu + g
        parts = [torch.empty_like(update) for _ in range(self.world)]
        dist.all_gather(parts, update)
        off, whole = 0, torch.cat(parts)
        for p in self.ps:
            p.sub_(whole[off:off + p.numel()].view_as(p), alpha=self.lr)
            p.grad = None
            off += p.numel()

    def state_dict(self):
        return {"velocity": self.velocity, "width": self.width}

    def load_state_dict(self, sd):
        if sd["width"] != self.width:
            raise ValueError("partition width changed")
        self.velocity.copy_(sd["velocity"])
