import torch
import torch.distributed as dist


class ShardedAdamW:
    """ZeRO-1: bf16 working weights everywhere, fp32 master weights and moments only for the own slice."""

    def __init__(self, params, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, max_norm=1.0):
        self.params = list(params)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.lr, self.betas, self.eps, self.wd, self.max_norm = lr, betas, eps, weight_decay, max_norm
        n = sum(p.numel() for p in self.params)
        self.slice = -(-n // self.world)
        self.n, padded = n, self.slice * self.world
        full = torch.zeros(padded)
        full[:n] = torch.cat([p.detach().float().flatten() for p in self.params])
        dist.broadcast(full, 0)
        self.master = full[self.rank * self.slice : (self.rank + 1) * self.slice].clone()
        self.m, self.v = torch.zeros_like(self.master), torch.zeros_like(self.master)
        self.flat = full.bfloat16()
        self.grad32 = torch.zeros(padded)
        self.mine = torch.empty(self.slice)
        i = 0
        for p in self.params:
            p.data = self.flat[i : i + p.numel()].view_as(p)
            i += p.numel()
        self.t = 0

    @torch.no_grad()
    def accumulate(self):
        """Fold the bf16 gradients of one micro batch into the fp32 buffer."""
        i = 0
        for p in self.params:
            self.grad32[i : i + p.numel()].add_(p.grad.flatten())
            p.grad = None
            i += p.numel()

    @torch.no_grad()
    def step(self, micro_batches):
        dist.reduce_scatter_tensor(self.mine, self.grad32)
        self.grad32.zero_()
        g = self.mine.div_(self.world * micro_batches)
        sq = g.square().sum()
        dist.all_reduce(sq)
        norm = sq.sqrt()
        g.mul_((self.max_norm / (norm + 1e-6)).clamp(max=1.0))
        self.t += 1
        b1, b2 = self.betas
        self.m.lerp_(g, 1 - b1)
        self.v.mul_(b2).addcmul_(g, g, value=1 - b2)
        denom = (self.v / (1 - b2 ** self.t)).sqrt_().add_(self.eps)
        self.master.mul_(1 - self.lr * self.wd).addcdiv_(self.m, denom, value=-self.lr / (1 - b1 ** self.t))
        dist.all_gather_into_tensor(self.flat, self.master.bfloat16())
        return norm
