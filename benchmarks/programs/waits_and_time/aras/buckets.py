import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, params):
        self.params = params
        self.numel = sum(p.numel() for p in params)
        self.flat = torch.zeros(self.numel)

    def pack(self):
        at = 0
        for p in self.params:
            self.flat[at:at + p.numel()].copy_(p.grad.reshape(-1))
            at += p.numel()

    def unpack(self, world):
        at = 0
        for p in self.params:
            p.grad.copy_(self.flat[at:at + p.numel()].view_as(p)).div_(world)
            at += p.numel()


class GradientExchange:
    """Averages gradients in buckets, from the output side of the model to the input side."""

    def __init__(self, model, world, bucket_mb):
        self.world = world
        self.buckets = []
        self.works = []
        limit, group, size = bucket_mb * 2**20, [], 0
        for p in reversed(list(model.parameters())):
            group.append(p)
            size += p.numel() * 4
            if size >= limit:
                self.buckets.append(Bucket(group))
                group, size = [], 0
        if group:
            self.buckets.append(Bucket(group))
        self.buckets.sort(key=lambda b: b.numel, reverse=True)

    def launch(self):
        for bucket in self.buckets:
            bucket.pack()
            self.works.append(dist.all_reduce(bucket.flat, async_op=True))

    def finish(self):
        for work in self.works:
            work.wait()
        self.works.clear()
        for bucket in self.buckets:
            bucket.unpack(self.world)
