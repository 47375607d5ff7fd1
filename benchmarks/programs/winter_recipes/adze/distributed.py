import torch
import torch.distributed as dist


def gather_varlen(x):
    """Concatenates tensors whose first dimension differs between processes."""
    size = torch.tensor([x.shape[0]])
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    longest = int(max(sizes))
    padded = x.new_zeros(longest, *x.shape[1:])
    padded[: x.shape[0]] = x
    out = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(out, padded)
    return torch.cat(out)
