"""Optimizer-state and gradient sharding over a flat parameter space."""
import torch
import torch.distributed as dist


class ShardedAdam:
    def __init__(self, model, scaler, lr, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.scaler = scaler
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        total = sum(p.numel() for p in self.params)
        self.shard_size = -(-total // self.world)
        self.padded = self.shard_size * self.world
        self.total = total

        flat = self._flatten([p.detach() for p in self.params])
        dist.broadcast(flat, src=0)
        self._unflatten(flat)
        self.master = torch.nn.Parameter(self._own(flat).clone())
        self.inner = torch.optim.AdamW([self.master], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _flatten(self, tensors):
        flat = torch.zeros(self.padded)
        torch.cat([t.reshape(-1).float() for t in tensors], out=flat[:self.total])
        return flat

    def _own(self, flat):
        return flat[self.rank * self.shard_size:(self.rank + 1) * self.shard_size]

    @torch.no_grad()
    def _unflatten(self, flat):
        offset = 0
        for p in self.params:
            p.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def backward(self, loss):
        (loss * self.scaler.scale).backward()

    def _reduce_grads(self):
        flat = self._flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])
        dist.all_reduce(flat)
        return self._own(flat).div_(self.world * self.scaler.scale)

    @torch.no_grad()
    def step(self, max_norm=None):
        grad = self._reduce_grads()
        overflow = not bool(torch.isfinite(grad).all())
        if max_norm is not None:
            sq = torch.nan_to_num(grad, 0.0, 0.0, 0.0).pow(2).sum()
            dist.all_reduce(sq)
            grad.mul_((max_norm / (sq.sqrt() + 1e-6)).clamp(max=1.0))
        if not overflow:
            self.master.grad = grad
            self.inner.step()
        self.scaler.update(overflow)
        flat = torch.empty(self.padded)
        dist.all_gather_into_tensor(flat, self.master.detach().contiguous())
        self._unflatten(flat)
        return overflow
