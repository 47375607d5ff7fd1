import torch
import torch.distributed as dist


class ShardedAdam:
    """Adam whose moments are split over the workers along one flat buffer."""

    def __init__(self, model, lr, betas=(0.9, 0.99), eps=1e-8):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.lr, self.betas, self.eps = lr, betas, eps
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.numel = sum(p.numel() for p in self.params)
        self.chunk = self.numel // self.world
        self.total = self.chunk * self.world
        self.exp_avg = torch.zeros(self.chunk)
        self.exp_avg_sq = torch.zeros(self.chunk)
        self.t = 0

    def _flatten(self, tensors):
        flat = torch.cat([t.reshape(-1) for t in tensors])
        if self.total > flat.numel():
            flat = torch.nn.functional.pad(flat, (0, self.total - flat.numel()))
        return flat

    def _unflatten(self, flat):
        offset = 0
        for p in self.params:
            n = min(p.numel(), flat.numel() - offset)
            p.view(-1)[:n].copy_(flat[offset:offset + n])
            offset += n

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        lo = self.rank * self.chunk
        grads = self._flatten([p.grad for p in self.params])[:self.total]
        dist.all_reduce(grads)
        grad = grads[lo:lo + self.chunk] / self.world
        weight = self._flatten([p.data for p in self.params])[lo:lo + self.chunk]
        b1, b2 = self.betas
        self.exp_avg.mul_(b1).add_(grad, alpha=1 - b1)
        self.exp_avg_sq.mul_(b2).addcmul_(grad, grad, value=1 - b2)
        denom = (self.exp_avg_sq / (1 - b2 ** self.t)).sqrt_().add_(self.eps)
        weight = weight - self.lr * (self.exp_avg / (1 - b1 ** self.t)) / denom
        parts = [torch.empty_like(weight) for _ in range(self.world)]
        dist.all_gather(parts, weight)
        self._unflatten(torch.cat(parts)[:self.numel])
