import os

import torch.distributed as dist


def init_distributed():
    dist.init_process_group("gloo")
    return int(os.environ["RANK"]), dist.get_world_size()


def broadcast_parameters(module):
    for tensor in list(module.parameters()) + list(module.buffers()):
        dist.broadcast(tensor.data, 0)


def reduce_gradients(module):
    world = dist.get_world_size()
    for param in module.parameters():
        if param.requires_grad and param.grad is not None:
            dist.all_reduce(param.grad.data)
            param.grad.data /= world


def reduce_value(value):
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()
