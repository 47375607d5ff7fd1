import torch.distributed as dist


class LazyGroups:
    """Makes a group when its members first need it; the others never hear of it."""

    def __init__(self):
        self._made = {}

    def get(self, members):
        key = tuple(sorted(members))
        if dist.get_rank() not in key:
            raise ValueError("not a member")
        if key not in self._made:
            self._made[key] = dist.new_group(list(key), use_local_synchronization=True)
        return self._made[key]
