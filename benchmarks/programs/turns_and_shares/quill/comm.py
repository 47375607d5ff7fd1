"""Bucketed gradient exchange for plain modules."""
import torch
import torch.distributed as dist


class BucketReducer:
    """Groups gradients into flat buckets so that small layers share one call."""

    def __init__(self, params, bucket_numel=4096, group=None):
        self.params = [p for p in params if p.requires_grad]
        self.bucket_numel = bucket_numel
        self.group = group
        self.world = dist.get_world_size(group)
        self.calls = 0

    def _buckets(self):
        bucket, size = [], 0
        for p in reversed(self.params):
            if p.grad is None:
                continue
            bucket.append(p.grad)
            size += p.grad.numel()
            if size >= self.bucket_numel:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket

    def _exchange(self, bucket):
        flat = torch.cat([g.reshape(-1) for g in bucket])
        dist.all_reduce(flat, group=self.group)
        flat.div_(self.world)
        self.calls += 1
        offset = 0
        for i, grad in enumerate(bucket):
            piece = flat[offset:offset + grad.numel()].view_as(grad)
            bucket[i] = piece
            offset += grad.numel()

    @torch.no_grad()
    def reduce(self):
        for bucket in self._buckets():
            self._exchange(bucket)

    @torch.no_grad()
    def broadcast_parameters(self, src=0):
        for p in self.params:
            dist.broadcast(p, src, group=self.group)
