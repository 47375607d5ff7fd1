import os

import torch
import torch.distributed as dist


class Comm:
    """Topology of the job: world, the node we are on, and one rank per node."""

    def __init__(self, ranks_per_node):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.per_node = ranks_per_node
        self.num_nodes = self.world // ranks_per_node
        self.node = self.rank // ranks_per_node
        self.local_rank = self.rank % ranks_per_node
        self.node_ranks = list(range(self.node * ranks_per_node, (self.node + 1) * ranks_per_node))
        self.leaders = [n * ranks_per_node for n in range(self.num_nodes)]
        self.local_group = None
        self.leader_group = None

    @property
    def is_leader(self):
        return self.local_rank == 0

    def build(self):
        for n in range(self.num_nodes):
            ranks = list(range(n * self.per_node, (n + 1) * self.per_node))
            group = dist.new_group(ranks)
            if n == self.node:
                self.local_group = group
        if self.is_leader:
            self.leader_group = dist.new_group(self.leaders)
        self.log_group = dist.new_group(list(range(self.world)))
        return self

    @torch.no_grad()
    def all_gather_local(self, x):
        out = [torch.empty_like(x) for _ in range(self.per_node)]
        dist.all_gather(out, x.contiguous(), group=self.local_group)
        return torch.cat(out)

    @torch.no_grad()
    def all_gather_world(self, x):
        out = [torch.empty_like(x) for _ in range(self.world)]
        dist.all_gather(out, x.contiguous())
        return torch.cat(out)
