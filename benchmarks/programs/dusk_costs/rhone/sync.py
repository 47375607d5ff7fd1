"""Data-parallel helpers: start-up broadcast and gradient averaging."""
import torch
import torch.distributed as dist


def broadcast_parameters(model, src=0):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src)


def average_gradients(model):
    world = dist.get_world_size()
    for param in model.parameters():
        if param.grad is not None:
            dist.all_reduce(param.grad)
            param.grad /= world


def reduce_metrics(values):
    t = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(t)
    return (t / dist.get_world_size()).tolist()
