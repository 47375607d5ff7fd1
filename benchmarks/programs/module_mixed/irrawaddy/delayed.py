import torch
import torch.distributed as dist


class DelayedAverage:
    """Gradients of step t are averaged in the background and applied at step t+1."""

    def __init__(self, params):
        self.params = list(params)
        self.world = dist.get_world_size()
        self.pending = None

    @torch.no_grad()
    def exchange(self):
        flat = torch.cat([p.grad.flatten() for p in self.params])
        ready = self._collect()
        self.pending = (flat, dist.all_reduce(flat, async_op=True))
        return ready

    def _collect(self):
        if self.pending is None:
            return False
        flat, work = self.pending
        work.wait()
        at = 0
        for p in self.params:
            p.grad.copy_(flat[at:at + p.numel()].view_as(p) / self.world)
            at += p.numel()
        self.pending = None
        return True

    @torch.no_grad()
    def flush(self):
        return self._collect()
