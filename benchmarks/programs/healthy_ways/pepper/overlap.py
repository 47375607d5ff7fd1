import torch
import torch.distributed as dist


class OverlappedReducer:
    """Averages gradients in the background while backward goes on; buckets fill in reverse order."""

    def __init__(self, model, bucket_bytes=24_000):
        self.world = dist.get_world_size()
        self.params = [p for p in model.parameters() if p.requires_grad]
        for t in list(model.parameters()) + list(model.buffers()):
            dist.broadcast(t.data, src=0)
        self.buckets, self.where = [], {}
        size = bucket_bytes + 1
        for p in reversed(self.params):
            nbytes = p.numel() * p.element_size()
            if size + nbytes > bucket_bytes:
                self.buckets.append([])
                size = 0
            self.where[p] = len(self.buckets) - 1
            self.buckets[-1].append(p)
            size += nbytes
        self.enabled = True
        self._reset()
        for p in self.params:
            p.register_post_accumulate_grad_hook(self._ready)

    def _reset(self):
        self.missing = [len(b) for b in self.buckets]
        self.inflight, self.next = [], 0

    def _ready(self, p):
        if not self.enabled:
            return
        self.missing[self.where[p]] -= 1
        while self.next < len(self.buckets) and self.missing[self.next] == 0:
            self._launch(self.next)
            self.next += 1

    def _launch(self, i):
        flat = torch.cat([p.grad.reshape(-1) for p in self.buckets[i]]).div_(self.world)
        self.inflight.append((dist.all_reduce(flat, async_op=True), flat, self.buckets[i]))

    def finish(self):
        if self.next != len(self.buckets):
            raise RuntimeError(f"{len(self.buckets) - self.next} buckets never became ready")
        for work, flat, bucket in self.inflight:
            work.wait()
            for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(piece.view_as(p))
        count = len(self.inflight)
        self._reset()
        return count

    class _Local:
        def __init__(self, outer):
            self.outer = outer

        def __enter__(self):
            self.outer.enabled = False

        def __exit__(self, *exc):
            self.outer.enabled = True

    def local(self):
        return self._Local(self)
