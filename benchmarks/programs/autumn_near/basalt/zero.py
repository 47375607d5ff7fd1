import torch
import torch.distributed as dist


class SlicedAdam:
    """Stage-1 sharded Adam: each rank keeps moments and fp64 master copy of one slice of the flat parameters."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.98), eps=1e-8):
        self.params = [p for p in params if p.requires_grad]
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0
        n = sum(p.numel() for p in self.params)
        self.size = (n + self.world - 1) // self.world
        self.pad = self.size * self.world - n
        self.master = self._own(self._flat([p.detach() for p in self.params])).double()
        self.m = torch.zeros_like(self.master)
        self.v = torch.zeros_like(self.master)

    def _flat(self, tensors):
        flat = torch.cat([t.reshape(-1) for t in tensors])
        return torch.nn.functional.pad(flat, (0, self.pad))

    def _own(self, flat):
        return flat[self.rank * self.size:(self.rank + 1) * self.size].clone()

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def publish(self):
        full = torch.empty(self.size * self.world)
        dist.all_gather_into_tensor(full, self.master.float())
        off = 0
        for p in self.params:
            p.copy_(full[off:off + p.numel()].view_as(p))
            off += p.numel()

    @torch.no_grad()
    def step(self):
        flat = self._flat([p.grad for p in self.params])
        dist.all_reduce(flat)
        g = self._own(flat).double() / self.world
        self.t += 1
        b1, b2 = self.betas
        self.m.mul_(b1).add_(g, alpha=1 - b1)
        self.v.mul_(b2).addcmul_(g, g, value=1 - b2)
        mh = self.m / (1 - b1 ** self.t)
        vh = self.v / (1 - b2 ** self.t)
        self.master -= self.lr * mh / (vh.sqrt() + self.eps)
        self.publish()

    def state(self):
        return dict(t=self.t, m=self.m, v=self.v, master=self.master)

    def restore(self, s):
        self.t = s["t"]
        self.m.copy_(s["m"])
        self.v.copy_(s["v"])
        self.master.copy_(s["master"])
        self.publish()
