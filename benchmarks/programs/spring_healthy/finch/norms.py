import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def pool_running_stats(model):
    """Replace the running statistics of each rank by those of all ranks together."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    flat = torch.cat([torch.cat([m.running_mean, m.running_var + m.running_mean.square()]) for m in layers])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for m, c in zip(layers, flat.split([2 * m.num_features for m in layers])):
        mean, second = c.chunk(2)
        m.running_mean.copy_(mean)
        m.running_var.copy_(second - mean.square())
