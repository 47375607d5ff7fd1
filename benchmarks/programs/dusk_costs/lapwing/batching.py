"""Batch-size control by the measured gradient noise scale."""
import torch
import torch.distributed as dist


def split_by_share(total, shares):
    """Integer split of `total` in proportion to `shares` (the rest goes to the largest)."""
    weight = sum(shares)
    parts = [max(1, int(total * s / weight)) for s in shares]
    parts[shares.index(max(shares))] += total - sum(parts)
    return parts


class NoiseScale:
    """Simple noise scale from the gradient norms of the small (one rank) and the global batch."""

    def __init__(self, decay=0.8):
        self.decay, self.g2, self.s = decay, None, None

    def update(self, local_sq, local_n, global_sq, global_n):
        g2 = (global_n * global_sq - local_n * local_sq) / (global_n - local_n)
        s = (local_sq - global_sq) / (1.0 / local_n - 1.0 / global_n)
        if self.g2 is None:
            self.g2, self.s = g2, s
        else:
            self.g2 = self.decay * self.g2 + (1 - self.decay) * g2
            self.s = self.decay * self.s + (1 - self.decay) * s

    def value(self):
        return max(0.0, self.s / max(self.g2, 1e-12))


class ElasticBatch:
    def __init__(self, start, limit, every):
        self.size, self.limit, self.every = start, limit, every

    def propose(self, step, noise):
        """Doubles the global batch when the noise scale asks for it; same answer on all ranks."""
        if step % self.every or self.size >= self.limit:
            return self.size
        t = torch.tensor([noise], dtype=torch.float64)
        dist.all_reduce(t)
        if t.item() / dist.get_world_size() > self.size:
            self.size = min(self.limit, 2 * self.size)
        return self.size
