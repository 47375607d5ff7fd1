import time

import torch.distributed as dist


def wanted_partners(rank):
    """Every rank states in its own order with whom it wants to share statistics."""
    return {0: [(0, 1), (0,)], 1: [(1, 0), (1,)], 2: [(2,), (2, 0)]}[rank]


def agree(rank, world):
    lists = [None] * world
    dist.all_gather_object(lists, wanted_partners(rank))
    return sorted({tuple(sorted(p)) for own in lists for p in own}, key=lambda p: (-len(p), p))


class GroupBook:
    def __init__(self, slow_rank, pause):
        self.rank = dist.get_rank()
        self.slow_rank, self.pause = slow_rank, pause
        self.by_members = {}

    def build(self, plan):
        for i, members in enumerate(plan):
            if i == 2 and self.rank == self.slow_rank:
                time.sleep(self.pause)
            group = dist.new_group(list(members))
            if self.rank in members:
                self.by_members[members] = group
        return self

    def mean(self, tensor):
        total, n = tensor.clone(), 1
        for members, group in self.by_members.items():
            part = tensor.clone()
            dist.all_reduce(part, group=group)
            total += part / len(members)
            n += 1
        return total / n
