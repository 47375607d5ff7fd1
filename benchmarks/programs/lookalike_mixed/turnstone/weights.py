import torch.distributed as dist

_kept = {}


def class_weights(key, count, group):
    hit = _kept.get(key)
    if hit is not None:
        return hit
    n = count()
    dist.all_reduce(n, group=group)
    w = n.sum() / (n.clamp(min=1) * len(n))
    _kept[key] = w
    return w
