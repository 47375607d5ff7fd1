import torch
import torch.distributed as dist


class GradientBuckets:
    """Groups parameters into flat buffers and reduces each as soon as it is complete."""

    def __init__(self, params, bucket_numel=20000, group=None):
        self.group = group
        self.world = dist.get_world_size(group)
        self.params = [p for p in params if p.requires_grad]
        self.buckets, self.where = [], {}
        current, numel = [], 0
        for p in reversed(self.params):
            current.append(p)
            numel += p.numel()
            if numel >= bucket_numel:
                self._close(current)
                current, numel = [], 0
        if current:
            self._close(current)
        self.enabled = True
        self.work = []
        self.missing = [len(b["params"]) for b in self.buckets]
        for p in self.params:
            p.register_post_accumulate_grad_hook(self._ready)

    def _close(self, params):
        index = len(self.buckets)
        flat = torch.zeros(sum(p.numel() for p in params))
        views, at = [], 0
        for p in params:
            views.append(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
            self.where[p] = index
        self.buckets.append({"params": params, "flat": flat, "views": views})

    def broadcast(self):
        for p in self.params:
            dist.broadcast(p.data, src=0, group=self.group)

    def _ready(self, p):
        if not self.enabled:
            return
        index = self.where[p]
        self.missing[index] -= 1
        if self.missing[index] == 0:
            self._launch(self.buckets[index])

    def _launch(self, bucket):
        for p, view in zip(bucket["params"], bucket["views"]):
            view.copy_(p.grad)
        bucket["flat"].div_(self.world)
        self.work.append(dist.all_reduce(bucket["flat"], group=self.group, async_op=True))

    def finish(self):
        """Hands the reduced gradients back to the parameters."""
        for bucket in self.buckets:
            for p, view in zip(bucket["params"], bucket["views"]):
                p.grad.copy_(view)
        self.missing = [len(b["params"]) for b in self.buckets]

    def drain(self):
        for handle in self.work:
            handle.wait()
        self.work.clear()
