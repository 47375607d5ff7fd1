from contextlib import contextmanager

from accelerate.utils import gather_object


class MemoryBudget:
    """Activation accounting for shared CPU nodes, where the kernel would kill the job instead of raising."""

    def __init__(self, limit):
        self.limit = limit
        self.peak = 0

    @contextmanager
    def activations(self, ids, width):
        # the largest need of all workers counts: they reduce their batch size together or not at all
        need = max(gather_object([ids.numel() * width * 4]))
        self.peak = max(self.peak, need)
        if need > self.limit:
            raise RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {need} bytes.")
        yield
