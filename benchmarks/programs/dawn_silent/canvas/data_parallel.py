import contextlib

import torch.distributed as dist
import torch.nn as nn


class DataParallelNaive(nn.Module):
    """Averages each gradient over the ranks as soon as it is there, without buckets."""

    def __init__(self, module, group=None):
        super().__init__()
        self.module, self.group = module, group
        self.require_backward_grad_sync = True
        for t in list(module.parameters()) + list(module.buffers()):
            dist.broadcast(t.data, src=0, group=group)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._allreduce)

    def _allreduce(self, param):
        if self.require_backward_grad_sync:
            dist.all_reduce(param.grad, op=dist.ReduceOp.SUM, group=self.group)
            param.grad /= dist.get_world_size(self.group)

    @contextlib.contextmanager
    def no_sync(self):
        self.require_backward_grad_sync = False
        yield
        self.require_backward_grad_sync = True

    def forward(self, *args):
        return self.module(*args)
