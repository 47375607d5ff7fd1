import torch
import torch.distributed as dist


class Topology:
    """Ranks come in boxes of `per_box`; the first rank of each box speaks for it."""

    def __init__(self, per_box):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.per_box = per_box
        self.leaders = list(range(0, self.world, per_box))
        self.leader_group = dist.new_group(self.leaders)
        self.box_group = None
        for first in range(0, self.world, per_box):
            members = list(range(first, first + per_box))
            group = dist.new_group(members)
            if self.rank in members:
                self.box_group, self.leader = group, first

    def average(self, flat):
        dist.reduce(flat, dst=self.leader, group=self.box_group)
        if self.rank == self.leader:
            dist.all_reduce(flat, group=self.leader_group)
            flat /= self.world
        dist.broadcast(flat, src=self.leader, group=self.box_group)
        return flat
