import torch
import torch.distributed as dist


class LossScaler:
    def __init__(self, init=2.0 ** 24, growth=2.0, backoff=0.5, interval=40):
        self.scale, self.growth, self.backoff, self.interval = init, growth, backoff, interval
        self.good = 0

    def update(self, overflow):
        if overflow:
            self.scale, self.good = max(self.scale * self.backoff, 1.0), 0
        else:
            self.good += 1
            if self.good % self.interval == 0:
                self.scale *= self.growth


class MasterWeights:
    """float32 copies of a half-precision model, with averaging in float32."""

    def __init__(self, model):
        self.half = list(model.parameters())
        self.params = [torch.nn.Parameter(p.detach().float().clone()) for p in self.half]
        self.sizes = [p.numel() for p in self.params]

    def collect(self, scale):
        """half grads -> averaged float32 grads. True if any rank met a non-finite value."""
        flat = torch.cat([p.grad.reshape(-1) for p in self.half]).float()
        bad = torch.tensor([0.0 if torch.isfinite(flat).all() else 1.0])
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():
            return True
        flat.div_(scale * dist.get_world_size())
        dist.all_reduce(flat)
        for p, c in zip(self.params, flat.split(self.sizes)):
            p.grad = c.view_as(p)
        return False

    @torch.no_grad()
    def publish(self):
        for h, p in zip(self.half, self.params):
            h.copy_(p)
