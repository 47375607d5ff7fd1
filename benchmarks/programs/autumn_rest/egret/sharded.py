"""Adam with its state split over the data-parallel ranks."""
import torch
import torch.distributed as dist


class ShardedAdam:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.98), eps=1e-8):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.betas, self.eps = lr, betas, eps
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        total = sum(p.numel() for p in self.params)
        self.shard = (total + self.world - 1) // self.world
        self.total = total
        self.exp_avg = torch.zeros(self.shard)
        self.exp_avg_sq = torch.zeros(self.shard)
        self.t = 0

    def _flat(self, tensors):
        flat = torch.zeros(self.shard * self.world)
        torch.cat([t.reshape(-1) for t in tensors], out=flat[: self.total])
        return flat

    @torch.no_grad()
    def step(self):
        self.t += 1
        grad = self._flat([p.grad for p in self.params])
        dist.all_reduce(grad)
        lo, hi = self.rank * self.shard, (self.rank + 1) * self.shard
        g = grad[lo:hi].div_(self.world)
        w = self._flat([p.data for p in self.params])[lo:hi]
        b1, b2 = self.betas
        self.exp_avg.mul_(b1).add_(g, alpha=1 - b1)
        self.exp_avg_sq.mul_(b2).addcmul_(g, g, value=1 - b2)
        denom = (self.exp_avg_sq / (1 - b2 ** self.t)).sqrt_().add_(self.eps)
        w = w.addcdiv(self.exp_avg / (1 - b1 ** self.t), denom, value=-self.lr)
        parts = [torch.empty(self.shard) for _ in range(self.world)]
        dist.all_gather(parts, w.contiguous())
        flat = torch.cat(parts)
        at = 0
        for p in self.params:
            p.data.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def state_dict(self):
        return {"t": self.t, "rank": self.rank, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}

    def load_state_dict(self, state):
        self.t = state["t"]
        self.exp_avg.copy_(state["exp_avg"])
        self.exp_avg_sq.copy_(state["exp_avg_sq"])
