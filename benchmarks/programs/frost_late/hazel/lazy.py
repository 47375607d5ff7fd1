import torch.distributed as dist


class LazyGroups:
    """Makes a group when its members first need it; every rank takes part in making it."""

    def __init__(self):
        self._made = {}

    def get(self, members):
        key = tuple(sorted(members))
        if key not in self._made:
            self._made[key] = dist.new_group(list(key))
        return self._made[key]
