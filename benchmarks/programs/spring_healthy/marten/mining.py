import torch
import torch.distributed as dist


def global_hard_mask(losses, keep):
    """Which of my rows are among the `keep` hardest rows of all ranks. Ties go to lower positions."""
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(losses) for _ in range(world)]
    dist.all_gather(parts, losses.contiguous())
    order = torch.cat(parts).argsort(descending=True, stable=True)[:keep]
    mask = torch.zeros(world * len(losses), dtype=torch.bool)
    mask[order] = True
    return mask[rank * len(losses):(rank + 1) * len(losses)]
