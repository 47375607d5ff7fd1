import random


def pack(lengths, order, budget):
    """Greedy micro-batches with at most `budget` padded tokens each."""
    out, cur, width = [], [], 0
    for i in sorted(order, key=lambda k: lengths[k]):
        w = max(width, lengths[i])
        if cur and w * (len(cur) + 1) > budget:
            out.append(cur)
            cur, w = [], lengths[i]
        cur.append(i)
        width = w
    if cur:
        out.append(cur)
    return out


def plan(lengths, rank, world, per_update, budget, seed, epoch):
    """One entry per optimizer update: this rank's micro-batches and everybody's token total."""
    order = list(range(len(lengths)))
    random.Random(f"{seed}-{epoch}").shuffle(order)
    for s in range(0, len(order) - per_update + 1, per_update):
        group = sorted(order[s:s + per_update], key=lambda k: -lengths[k])
        shares, load = [[] for _ in range(world)], [0] * world
        for i in group:
            r = load.index(min(load))
            shares[r].append(i)
            load[r] += lengths[i]
        yield pack(lengths, shares[rank], budget), sum(lengths[i] for i in group)
