"""Named timers around parts of the loop; a part can be measured without overlap."""
import contextlib
import time
from collections import defaultdict

import torch.distributed as dist


class Timers:
    def __init__(self, enabled, fence=None):
        self.enabled = enabled
        self.fence = fence
        self.spans = defaultdict(list)

    @contextlib.contextmanager
    def span(self, name, exact=False):
        if not self.enabled:
            yield
            return
        if exact:
            self._settle()
        start = time.perf_counter()
        try:
            yield
        finally:
            if exact:
                self._settle()
            self.spans[name].append(time.perf_counter() - start)

    def _settle(self):
        """Let work that is still under way end, so that it is not booked on this span."""
        if self.fence is not None:
            self.fence()

    def table(self):
        rows = []
        for name, values in sorted(self.spans.items()):
            ms = 1000 * sum(values) / len(values)
            rows.append(f"{name}: {ms:.2f} ms x {len(values)}")
        return "; ".join(rows) or "nothing measured"


def group_fence():
    if dist.is_initialized():
        dist.barrier()


class TraceWindow:
    """Exact measurements only for steps [start, start + length)."""

    def __init__(self, start, length):
        self.start, self.end = start, start + length

    def __contains__(self, step):
        return self.start <= step < self.end
