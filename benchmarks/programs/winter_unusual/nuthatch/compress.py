import torch
import torch.distributed as dist


class TopKState:
    """Deep gradient compression: every rank ships its own largest entries and keeps the rest for later."""

    def __init__(self, density, dense_steps, buckets_per_step):
        self.density, self.world = density, dist.get_world_size()
        self.residual = {}
        self.dense_calls = dense_steps * buckets_per_step
        self.calls = 0


def topk_hook(state: TopKState, bucket):
    buf = bucket.buffer()
    state.calls += 1
    if state.calls <= state.dense_calls:
        fut = dist.all_reduce(buf.div_(state.world), async_op=True).get_future()
        return fut.then(lambda f: f.value()[0])

    # one entry per bucket index; buffers are rebuilt to the same size after the first iteration
    mem = state.residual.get(bucket.index())
    if mem is None or mem.numel() != buf.numel():
        mem = state.residual[bucket.index()] = torch.zeros_like(buf)
    mem.add_(buf)
    k = max(1, int(buf.numel() * state.density))
    idx = mem.abs().topk(k, sorted=False).indices
    packed = torch.stack([mem[idx], idx.to(mem.dtype)])
    mem[idx] = 0.0
    out = packed.new_empty(state.world * packed.numel())
    fut = dist.all_gather_into_tensor(out, packed.view(-1), async_op=True).get_future()

    def decode(_):
        parts = out.view(state.world, 2, k)
        buf.zero_()
        buf.index_add_(0, parts[:, 1].reshape(-1).long(), parts[:, 0].reshape(-1))
        return buf.div_(state.world)

    return fut.then(decode)
