import contextlib


class Accumulator:
    """Decides for each micro-batch whether gradients are exchanged and the optimizer steps."""

    def __init__(self, model, optimizer, steps, total):
        self.model, self.optimizer = model, optimizer
        self.steps, self.total = steps, total

    def boundary(self, i):
        return (i + 1) % self.steps == 0 or i + 1 == self.total

    @contextlib.contextmanager
    def micro(self, i):
        last = self.boundary(i)
        with contextlib.nullcontext() if last else self.model.no_sync():
            yield self.steps
        if last:
            self.optimizer.step()
            self.optimizer.zero_grad()
