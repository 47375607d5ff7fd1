"""Which ranks do what: stages of a node share a data group, some keep replicas of the weights."""
import torch.distributed as dist


class Topology:
    def __init__(self, keepers):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.keepers = sorted(keepers)
        self.keeper_group = dist.new_group(self.keepers)

    @property
    def is_main(self):
        return self.rank == 0

    @property
    def keeps(self):
        return self.rank in self.keepers
