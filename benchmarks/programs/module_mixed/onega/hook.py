import torch
import torch.distributed as dist


class TopKState:
    """What was not sent stays on the rank and is added to its next gradient."""

    def __init__(self, density=0.1):
        self.density = density
        self.residual = {}


def topk_hook(state, bucket):
    buf = bucket.buffer()
    world = dist.get_world_size()
    left = state.residual.get(bucket.index())
    if left is None or left.numel() != buf.numel():
        left = torch.zeros_like(buf)
    acc = buf + left
    k = max(1, int(acc.numel() * state.density))
    idx = acc.abs().topk(k).indices
    val = acc[idx]
    acc[idx] = 0
    state.residual[bucket.index()] = acc

    idx_all = [torch.empty_like(idx) for _ in range(world)]
    val_all = [torch.empty_like(val) for _ in range(world)]
    dist.all_gather(idx_all, idx)
    work = dist.all_gather(val_all, val, async_op=True)

    def merge(_):
        buf.zero_()
        for i, v in zip(idx_all, val_all):
            buf.index_add_(0, i, v / world)
        return buf

    return work.get_future().then(merge)
