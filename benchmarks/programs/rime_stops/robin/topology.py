import torch.distributed as dist


class Topology:
    """Islands of workers; statistics are shared inside an island, gradients globally."""

    def __init__(self, island_size):
        world, rank = dist.get_world_size(), dist.get_rank()
        assert world % island_size == 0, "world size must be a multiple of the island size"
        self.rank, self.world = rank, world
        self.island = rank // island_size
        self.members = list(range(self.island * island_size, (self.island + 1) * island_size))
        for start in range(0, world, island_size):
            group = dist.new_group(list(range(start, start + island_size)))
            if start == self.members[0]:
                self.island_group = group
        self.leaders = list(range(0, world, island_size))
        self.leader_group = dist.new_group(self.leaders)

    @property
    def is_leader(self):
        return self.rank in self.leaders
