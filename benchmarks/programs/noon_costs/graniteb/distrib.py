import os

import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def init_distributed():
    dist.init_process_group("gloo")
    return int(os.environ["RANK"]), dist.get_world_size()


def broadcast_parameters(module):
    for tensor in list(module.parameters()) + list(module.buffers()):
        dist.broadcast(tensor.data, 0)


def reduce_gradients(module):
    world = dist.get_world_size()
    grads = [p.grad.data for p in module.parameters() if p.requires_grad and p.grad is not None]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat /= world
    for grad, synced in zip(grads, _unflatten_dense_tensors(flat, grads)):
        grad.copy_(synced)


def reduce_value(value):
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()
