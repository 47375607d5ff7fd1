"""Top-k sparsified gradients with error feedback, as a DDP communication hook."""
import torch
import torch.distributed as dist


class TopKState:
    def __init__(self, group=None, ratio=0.05, warmup_steps=10):
        self.group, self.ratio, self.warmup = group, ratio, warmup_steps
        self.residual = {}          # bucket index -> what this process still owes
        self.seen = {}

    def residual_norm(self):
        return sum(float(r.norm() ** 2) for r in self.residual.values()) ** 0.5


def topk_hook(state, bucket):
    world = dist.get_world_size(state.group)
    grad = bucket.buffer()
    key = bucket.index()
    n = state.seen[key] = state.seen.get(key, 0) + 1
    if n <= state.warmup:                    # dense at first; DDP also rebuilds its buckets here
        fut = dist.all_reduce(grad.div_(world), group=state.group, async_op=True).get_future()
        return fut.then(lambda f: f.value()[0])
    if key not in state.residual or state.residual[key].numel() != grad.numel():
        state.residual[key] = torch.zeros_like(grad)
    memory = state.residual[key]
    memory.add_(grad)
    k = max(1, int(state.ratio * grad.numel()))
    idx = memory.abs().topk(k, sorted=False).indices
    val = memory[idx].clone()
    memory[idx] = 0                          # sent, no longer owed
    vals = [torch.empty_like(val) for _ in range(world)]
    idxs = [torch.empty_like(idx) for _ in range(world)]
    dist.all_gather(vals, val, group=state.group)
    dist.all_gather(idxs, idx, group=state.group)
    grad.zero_()
    for v, i in zip(vals, idxs):
        grad.index_add_(0, i, v / world)
    fut = torch.futures.Future()
    fut.set_result(grad)
    return fut
