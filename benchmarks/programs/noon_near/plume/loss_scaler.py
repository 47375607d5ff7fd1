import torch


class DynamicLossScaler:
    def __init__(self, init_scale=2.0 ** 16, growth=2.0, backoff=0.5, interval=8, ceiling=2.0 ** 28):
        self.scale = init_scale
        self.growth = growth
        self.backoff = backoff
        self.interval = interval
        self.ceiling = ceiling
        self.good = 0

    def update(self, overflow):
        if overflow:
            self.scale = max(self.scale * self.backoff, 1.0)
            self.good = 0
            return
        self.good += 1
        if self.good % self.interval == 0:
            self.scale = min(self.scale * self.growth, self.ceiling)


class HalfGradOptimizer:
    """Keeps gradients as float16 buffers and steps the float32 weights from them."""

    def __init__(self, params, optimizer, scaler):
        self.params = list(params)
        self.optimizer = optimizer
        self.scaler = scaler
        self.buffers = {}
        self.skipped = 0
        for p in self.params:
            p.register_post_accumulate_grad_hook(self._stash)

    def _stash(self, p):
        self.buffers[p] = p.grad.half()
        p.grad = None

    def backward(self, loss):
        self.buffers.clear()
        (loss * self.scaler.scale).backward()

    def _overflowed(self):
        flag = torch.zeros(())
        for g in self.buffers.values():
            flag += (~torch.isfinite(g)).any().float()
        return flag

    def step(self):
        overflow = bool(self._overflowed() > 0)
        if overflow:
            self.skipped += 1
        else:
            inv = 1.0 / self.scaler.scale
            for p in self.params:
                p.grad = self.buffers[p].float() * inv
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.scaler.update(overflow)
