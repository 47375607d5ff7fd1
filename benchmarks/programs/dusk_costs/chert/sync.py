"""Data-parallel helpers: start-up broadcast and gradient averaging."""
import torch
import torch.distributed as dist


def broadcast_parameters(model, src=0):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src)


def average_gradients(model):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, flat.split([g.numel() for g in grads])):
        grad.copy_(part.view_as(grad))


def reduce_metrics(values):
    t = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(t)
    return (t / dist.get_world_size()).tolist()
