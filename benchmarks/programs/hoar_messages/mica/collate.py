import functools

import torch
import torch.distributed as dist


@functools.lru_cache(maxsize=256)
def common_length(local_length, multiple=8):
    """Longest sequence over all processes, rounded up so that shapes repeat."""
    lengths = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([local_length]))
    n = int(max(lengths))
    return (n + multiple - 1) // multiple * multiple


def pad_batch(seqs):
    n = common_length(max(len(s) for s in seqs))
    out = torch.zeros(len(seqs), n, dtype=torch.long)
    for i, s in enumerate(seqs):
        out[i, :len(s)] = s
    return out, torch.tensor([len(s) for s in seqs])
