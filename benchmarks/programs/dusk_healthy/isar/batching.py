"""Token-budget batches: long sentences come in small batches, short ones in large batches."""
import random


def token_batches(lengths, budget, world, rank, epoch, seed=0):
    """Every sentence goes to exactly one batch, every process gets equally many batches.

    Batch sizes differ between processes; the common pool is cut first and dealt afterwards.
    """
    rng = random.Random(seed * 1000 + epoch)
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], rng.random()))
    batches, cur, longest = [], [], 0
    for i in order:
        longest = max(longest, lengths[i])
        if cur and longest * (len(cur) + 1) > budget:
            batches.append(cur)
            cur, longest = [], lengths[i]
        cur.append(i)
    if cur:
        batches.append(cur)
    # split the biggest ones until the number of batches divides evenly
    while len(batches) % world:
        batches.sort(key=len)
        big = batches.pop()
        batches += [big[::2], big[1::2]]
    rng.shuffle(batches)
    return batches[rank::world]
