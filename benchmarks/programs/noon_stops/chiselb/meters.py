import torch
import torch.distributed as dist


class Metric:
    """Accumulates on every process; compute() gives the value over all of them."""

    def __init__(self, size):
        self.state = torch.zeros(size, dtype=torch.float64)

    def reset(self):
        self.state.zero_()

    def _synced(self):
        state = self.state.clone()
        if dist.is_available() and dist.is_initialized():
            parts = [torch.zeros_like(state) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, state)
            state = torch.stack(parts).sum(0)
        return state


class Accuracy(Metric):
    def __init__(self):
        super().__init__(2)

    def update(self, logits, target):
        self.state[0] += (logits.argmax(-1) == target).sum()
        self.state[1] += target.numel()

    def compute(self):
        s = self._synced()
        return (s[0] / s[1].clamp(min=1)).item()


class ConfusionMatrix(Metric):
    def __init__(self, classes):
        super().__init__(classes * classes)
        self.classes = classes

    def update(self, logits, target):
        idx = target * self.classes + logits.argmax(-1)
        self.state += torch.bincount(idx, minlength=self.classes ** 2)

    def compute(self):
        return self._synced().view(self.classes, self.classes)
