import torch
import torch.distributed as dist


def average_gradients(module):
    grads = [p.grad for p in module.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for g in grads:
        g.copy_(flat[at:at + g.numel()].view_as(g))
        at += g.numel()


def global_mean_std(x):
    s = torch.stack([x.sum(), x.pow(2).sum(), torch.tensor(float(x.numel()))])
    dist.all_reduce(s)
    mean = s[0] / s[2]
    return mean, (s[1] / s[2] - mean ** 2).clamp_min(0).sqrt()


def mean_of(x):
    x = x.detach().clone()
    dist.all_reduce(x)
    return (x / dist.get_world_size()).item()
