import contextlib
import copy

import torch


class WeightAverage:
    """Exponential average of the weights with a warm start of the decay."""

    def __init__(self, model, decay=0.98):
        self.decay, self.updates = decay, 0
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p.detach(), 1 - d)
        for s, b in zip(self.shadow.buffers(), model.buffers()):
            s.copy_(b)

    def state_dict(self):
        return {"shadow": self.shadow.state_dict(), "updates": self.updates, "decay": self.decay}


@contextlib.contextmanager
def timed(label, sink):
    import time
    t = time.perf_counter()
    yield
    sink[label] = sink.get(label, 0.0) + time.perf_counter() - t
