import torch
import torch.distributed as dist


class TopKMomentum:
    """Momentum SGD on top-k compressed gradients with error feedback."""

    def __init__(self, named, lr, mu=0.9, keep=0.05):
        self.named = dict(named)
        self.lr, self.mu, self.keep = lr, mu, keep
        self.mom = {k: torch.zeros_like(p) for k, p in self.named.items()}
        self.left = {k: torch.zeros_like(p) for k, p in self.named.items()}

    @torch.no_grad()
    def step(self):
        world = dist.get_world_size()
        for k, p in self.named.items():
            acc = self.left[k] + p.grad
            flat = acc.flatten()
            n = max(1, int(self.keep * flat.numel()))
            idx = flat.abs().topk(n).indices
            msg = torch.zeros_like(flat)
            msg[idx] = flat[idx]
            self.left[k] = (flat - msg).view_as(p)
            dist.all_reduce(msg)
            self._apply(k, msg.view_as(p) / world)
            p.grad = None

    def _apply(self, k, g):
        self.mom[k].mul_(self.mu).add_(g)
        self.named[k].add_(self.mom[k], alpha=-self.lr)

    @torch.no_grad()
    def flush(self):
        """One dense update with everything not yet sent."""
        world = dist.get_world_size()
        for k in self.named:
            rest = self.left[k].clone()
            dist.all_reduce(rest)
            self._apply(k, rest / world)
            self.left[k].zero_()
