import torch.distributed as dist


class Squad:
    """The workers that train one ensemble member together."""

    def __init__(self, names):
        world, rank = dist.get_world_size(), dist.get_rank()
        per = world // len(names)
        self.index = min(rank // per, len(names) - 1)
        first = self.index * per
        last = world if self.index == len(names) - 1 else first + per
        self.name = names[self.index]
        self.ranks = list(range(first, last))
        self.group = dist.new_group(self.ranks, use_local_synchronization=True)
        self.local = self.ranks.index(rank)
        self.size = len(self.ranks)

    @property
    def captain(self):
        return self.local == 0
