import torch
import torch.distributed as dist


class OverlappedReducer:
    """Flat gradient buckets; each is reduced asynchronously as soon as its last gradient is there."""

    def __init__(self, module, bucket_mb=1.0):
        self.world = dist.get_world_size()
        self.pending = []
        self.buckets = []
        params = [p for p in module.parameters() if p.requires_grad][::-1]
        limit, group, size = int(bucket_mb * 2 ** 20), [], 0
        for p in params:
            group.append(p)
            size += p.numel() * p.element_size()
            if size >= limit:
                self._add(group)
                group, size = [], 0
        if group:
            self._add(group)

    def _add(self, params):
        flat = torch.zeros(sum(p.numel() for p in params))
        bucket = {"flat": flat, "params": params, "left": len(params)}
        offset = 0
        for p in params:
            p.grad = flat[offset:offset + p.numel()].view_as(p)
            offset += p.numel()
            p.register_post_accumulate_grad_hook(lambda _, b=bucket: self._ready(b))
        self.buckets.append(bucket)

    def _ready(self, bucket):
        bucket["left"] -= 1
        if bucket["left"] == 0:
            bucket["flat"].div_(self.world)
            self.pending.append(dist.all_reduce(bucket["flat"], async_op=True))

    def zero(self):
        for bucket in self.buckets:
            bucket["flat"].zero_()
            bucket["left"] = len(bucket["params"])

    def wait(self):
        for work in self.pending:
            work.wait()
        self.pending.clear()
