"""Thin wrappers around torch.distributed used by the learner and the curriculum thread."""
import threading

import torch.distributed as dist


class Channel:
    """Collectives of one kind of traffic. Calls are serialised inside the process."""

    def __init__(self, name):
        self._guard = threading.Lock()
        self.name = name
        self.group = dist.new_group(backend="gloo")
        self.calls = 0

    def all_reduce(self, tensor, op=dist.ReduceOp.SUM):
        with self._guard:
            self.calls += 1
            dist.all_reduce(tensor, op=op, group=self.group)

    def all_gather_object(self, item):
        out = [None] * dist.get_world_size(self.group)
        with self._guard:
            self.calls += 1
            dist.all_gather_object(out, item, group=self.group)
        return out
