"""Communication hooks for DistributedDataParallel."""
import torch
import torch.distributed as dist


class HookState:
    def __init__(self, group=None, chunks=4, start_chunked=4):
        self.group = group if group is not None else dist.group.WORLD
        self.chunks, self.start_chunked = chunks, start_chunked
        self.iteration = 0
        self.bytes_sent = 0

    def tick(self, bucket):
        if bucket.is_last():
            self.iteration += 1


def _whole(state, bucket):
    buf = bucket.buffer()
    state.bytes_sent += buf.numel() * buf.element_size()
    buf.div_(state.group.size())
    return dist.all_reduce(buf, group=state.group, async_op=True).get_future().then(lambda f: f.value()[0])


def _chunked(state, bucket):
    """Several smaller messages, which slow links take better."""
    buf = bucket.buffer()
    buf.div_(state.group.size())
    futures = []
    for part in buf.chunk(state.chunks):
        state.bytes_sent += part.numel() * part.element_size()
        futures.append(dist.all_reduce(part, group=state.group, async_op=True).get_future())
    return torch.futures.collect_all(futures).then(lambda _: buf)


def adaptive_hook(state, bucket):
    whole = state.iteration < state.start_chunked
    state.tick(bucket)
    return _whole(state, bucket) if whole else _chunked(state, bucket)
