"""Process groups for hosts of a given size, and a gradient mean in three hops."""
import torch
import torch.distributed as dist


class Hierarchy:
    def __init__(self, per_host):
        rank, world = dist.get_rank(), dist.get_world_size()
        host = rank // per_host
        members = list(range(host * per_host, (host + 1) * per_host))
        self.world = world
        self.leader = members[0]
        self.is_leader = rank == self.leader
        self.inside = dist.new_group(members, use_local_synchronization=True, group_desc=f"host{host}")
        self.across = None
        if self.is_leader:
            leaders = list(range(0, world, per_host))
            self.across = dist.new_group(leaders, use_local_synchronization=True, group_desc="leaders")

    def mean_(self, flat):
        dist.reduce(flat, dst=self.leader, group=self.inside)
        if self.is_leader:
            dist.all_reduce(flat, group=self.across)
            flat /= self.world
        dist.broadcast(flat, src=self.leader, group=self.inside)
        return flat


@torch.no_grad()
def mean_gradients(params, hierarchy):
    params = [p for p in params if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in params])
    hierarchy.mean_(flat)
    for p, piece in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(piece.view_as(p))
