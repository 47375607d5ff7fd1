from functools import lru_cache

import torch
import torch.distributed as dist

from corpus import CLASSES, load_shard


@lru_cache(maxsize=None)
def label_counts(split):
    """How often every label occurs in a split, over all shards of the job."""
    _, labels = load_shard(split)
    counts = torch.bincount(labels, minlength=CLASSES).double()
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(counts)
    return counts


def class_weights(split, power=0.5):
    counts = label_counts(split)
    w = (counts.sum() / counts.clamp(min=1)).pow(power)
    return (w / w.mean()).float()


def describe(split):
    _, labels = load_shard(split)
    counts = torch.bincount(labels, minlength=CLASSES)
    return f"{split}: {len(labels)} samples in the first shard, labels {[int(c) for c in counts]}"
