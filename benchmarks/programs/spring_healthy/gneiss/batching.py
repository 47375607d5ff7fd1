import torch


def deal(lengths, world):
    """Longest first, always to the rank with the fewest tokens so far."""
    load, hands = [0] * world, [[] for _ in range(world)]
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        r = load.index(min(load))
        hands[r].append(i)
        load[r] += lengths[i]
    return hands


def micro_batches(indices, lengths, budget):
    """Rectangles of at most `budget` cells, neighbours in length go together."""
    out, cur = [], []
    for i in sorted(indices, key=lambda i: lengths[i]):
        if cur and (len(cur) + 1) * lengths[i] > budget:
            out.append(cur)
            cur = []
        cur.append(i)
    return out + [cur] if cur else out


def collate(seqs, pad=0, ignore=-100):
    width = max(len(s) for s in seqs) - 1
    x = torch.full((len(seqs), width), pad)
    y = torch.full((len(seqs), width), ignore)
    for k, s in enumerate(seqs):
        x[k, :len(s) - 1], y[k, :len(s) - 1] = s[:-1], s[1:]
    return x, y
