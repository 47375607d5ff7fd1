"""Which process works on which task, and the communicators that follow from it."""
from functools import lru_cache

import torch.distributed as dist

LAYOUT = {
    "segment": (0, 1, 2),
    "normals": (0, 1, 2),
    "depth": (1, 2),
    "edges": (0, 1, 2),
}


def tasks_of(rank):
    return [t for t, members in LAYOUT.items() if rank in members]


@lru_cache(maxsize=None)
def communicator(task):
    return dist.new_group(list(LAYOUT[task]))


def open_communicators():
    """Everybody takes part in making every communicator, in the order of the layout."""
    for task in LAYOUT:
        communicator(task)


def average_(tensors, task):
    members = LAYOUT[task]
    group = communicator(task)
    for t in tensors:
        dist.all_reduce(t, group=group)
        t.div_(len(members))
