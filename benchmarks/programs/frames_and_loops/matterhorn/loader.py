import queue
import threading

import torch
import torch.distributed as dist


class TokenBatcher:
    """Groups sentences until the token budget is reached (padding included)."""

    def __init__(self, lengths, budget):
        self.lengths = lengths
        self.budget = budget

    def __call__(self, order):
        batch, longest = [], 0
        for i in order:
            n = self.lengths[i]
            if batch and max(longest, n) * (len(batch) + 1) > self.budget:
                yield batch
                batch, longest = [], 0
            batch.append(i)
            longest = max(longest, n)
        if batch:
            yield batch


class PrefetchLoader:
    """Builds padded batches in a thread, a few ahead of the training loop.

    All processes pad to a common length so that the step time is even; the
    length is agreed on over a group of its own.
    """

    END = object()

    def __init__(self, dataset, batcher, rank, world, depth=3, seed=0, buckets=4):
        self.dataset, self.batcher = dataset, batcher
        self.rank, self.world = rank, world
        self.depth, self.seed, self.buckets = depth, seed, buckets
        self.group = dist.new_group()
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _plan(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.dataset), generator=g)
        order = order[: len(order) // self.world * self.world]
        mine = order[self.rank :: self.world].tolist()
        size = max(1, len(mine) // self.buckets)
        for at in range(0, len(mine), size):
            mine[at : at + size] = sorted(mine[at : at + size], key=lambda i: self.batcher.lengths[i])
        return list(self.batcher(mine))

    def _collate(self, ids, width):
        tokens = torch.zeros(len(ids), width, dtype=torch.long)
        labels = torch.empty(len(ids), dtype=torch.long)
        for row, i in enumerate(ids):
            seq, label = self.dataset[i]
            tokens[row, : len(seq)] = seq
            labels[row] = label
        return tokens, labels

    def _agree(self, value):
        t = torch.tensor([value])
        dist.all_reduce(t, op=dist.ReduceOp.MAX, group=self.group)
        return int(t)

    def _work(self, out):
        plan = self._plan()
        for ids in plan:
            width = self._agree(max(self.batcher.lengths[i] for i in ids))
            out.put(self._collate(ids, width))
        out.put(self.END)

    def __iter__(self):
        out = queue.Queue(maxsize=self.depth)
        thread = threading.Thread(target=self._work, args=(out,), daemon=True)
        thread.start()
        while True:
            item = out.get()
            if item is self.END:
                break
            yield item
        thread.join()
