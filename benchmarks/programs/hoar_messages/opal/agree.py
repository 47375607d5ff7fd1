import torch
import torch.distributed as dist


def any_rank(flag):
    t = torch.tensor([int(flag)])
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return bool(t.item())


def mean_over_ranks(value):
    t = torch.tensor([value])
    dist.all_reduce(t)
    return t.item() / dist.get_world_size()


def retry(fn, attempts, on_error):
    """Purely local retries."""
    for i in range(attempts):
        try:
            return fn()
        except OSError as e:
            on_error(i, e)
    return None
