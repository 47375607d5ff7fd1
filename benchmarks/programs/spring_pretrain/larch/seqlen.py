"""Token-budget batching, so that micro-batches cost about the same memory."""
import torch
import torch.distributed as dist


def ceildiv(a, b):
    return -(a // -b)


def balanced_partition(lengths, k):
    """Longest first into the lightest bin; every bin gets at least one item."""
    bins, loads = [[] for _ in range(k)], [0] * k
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        j = loads.index(min(loads))
        bins[j].append(i)
        loads[j] += lengths[i]
    return bins


def prepare_dynamic_batch(rollouts, max_token_len, dp_group=None):
    lengths = [len(r.tokens) for r in rollouts]
    num = min(len(rollouts), ceildiv(sum(lengths), max_token_len))
    if dist.is_initialized() and dp_group is not None:
        t = torch.tensor([num])
        dist.all_reduce(t, op=dist.ReduceOp.MAX, group=dp_group)
        num = t.item()
    return [[rollouts[i] for i in part] for part in balanced_partition(lengths, num)]


def collate(rollouts, pad):
    width = max(len(r.tokens) for r in rollouts)
    tokens = torch.full((len(rollouts), width), pad)
    mask = torch.zeros(len(rollouts), width - 1)
    for i, r in enumerate(rollouts):
        tokens[i, :len(r.tokens)] = r.tokens
        mask[i, r.prompt_len - 1:len(r.tokens) - 1] = 1
    return tokens, mask, torch.tensor([r.advantage for r in rollouts])
