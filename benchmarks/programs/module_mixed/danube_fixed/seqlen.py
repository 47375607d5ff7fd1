"""Helpers that balance sequences into micro-batches by token count."""
import torch
import torch.distributed as dist


def ceildiv(a, b):
    return -(-a // b)


def greedy_partition(lengths, k):
    """Longest-processing-time partition of `lengths` into k lists of indices."""
    buckets = [[] for _ in range(k)]
    loads = [0] * k
    for idx in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        j = loads.index(min(loads))
        buckets[j].append(idx)
        loads[j] += lengths[idx]
    return [sorted(b) for b in buckets if b]


def rearrange_micro_batches(lengths, max_token_len, dp_group=None, same_micro_num_in_dp=True):
    assert max_token_len >= max(lengths), "a single sequence exceeds the token budget"
    num_micro = ceildiv(sum(lengths), max_token_len)
    if dist.is_initialized() and same_micro_num_in_dp and dp_group is not None:
        t = torch.tensor([num_micro])
        dist.all_reduce(t, op=dist.ReduceOp.MAX, group=dp_group)
        num_micro = int(t.item())
    num_micro = min(num_micro, len(lengths))
    return greedy_partition(lengths, num_micro)


def prepare_dynamic_batch(batch, max_token_len, dp_group=None):
    lengths = [int(n) for n in batch["lengths"]]
    parts = rearrange_micro_batches(lengths, max_token_len, dp_group=dp_group)
    micro = []
    for idx in parts:
        width = max(lengths[i] for i in idx)
        micro.append({
            "tokens": batch["tokens"][idx, :width],
            "lengths": batch["lengths"][idx],
            "advantages": batch["advantages"][idx],
        })
    return micro
