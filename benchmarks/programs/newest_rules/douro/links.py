from datetime import timedelta

import torch.distributed as dist

LIMIT = timedelta(seconds=30)


def rounds(world):
    for span in range(1, world):
        yield [(a, a ^ span) for a in range(world) if a < a ^ span]


def build():
    rank, world = dist.get_rank(), dist.get_world_size()
    links = {}
    for pairs in rounds(world):
        for a, b in pairs:
            group = dist.new_group([a, b], timeout=LIMIT, use_local_synchronization=True)
            if rank in (a, b):
                links[a + b - rank] = group
    return links


def average(tensor, links):
    rank, world = dist.get_rank(), dist.get_world_size()
    span = 1
    while span < world:
        dist.all_reduce(tensor, group=links[rank ^ span])
        tensor /= 2
        span *= 2
