import torch
import torch.distributed as dist


def mean_over_ranks(total, count):
    """Average of a sum that is spread over the processes."""
    mine = torch.stack([total.float(), count.float()])
    table = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(table, mine)
    acc = torch.zeros_like(mine)
    for part in table:
        acc += part
    return (acc[0] / acc[1]).item()
