from contextlib import contextmanager


class MemoryBudget:
    """Activation accounting for shared CPU nodes, where the kernel would kill the job instead of raising."""

    def __init__(self, limit):
        self.limit = limit
        self.peak = 0

    @contextmanager
    def activations(self, ids, width):
        need = ids.numel() * width * 4
        self.peak = max(self.peak, need)
        if need > self.limit:
            raise RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {need} bytes.")
        yield
