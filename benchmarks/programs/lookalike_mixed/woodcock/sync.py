import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def mean_gradients(net):
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, new in zip(grads, _unflatten_dense_tensors(flat, grads)):
        g.copy_(new)
