import torch


class PromptAnswerSet:
    """Prompts of very different length, each followed by a short answer."""

    def __init__(self, n, vocab=64, seed=0):
        g = torch.Generator().manual_seed(seed)
        length = (8 + 88 * torch.rand(n, generator=g).pow(4)).long()
        key = torch.randint(0, 16, (vocab,), generator=torch.Generator().manual_seed(14))
        self.items = []
        for i in range(n):
            prompt = torch.randint(16, vocab, (int(length[i]),), generator=g)
            picked = key[prompt[-4:]]
            answer = picked if length[i] < 40 else picked.flip(0)
            self.items.append((prompt, answer))

    def __len__(self):
        return len(self.items)


def collate(items, pad=0):
    rows = [torch.cat([p, a]) for p, a in items]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), -100)
    for i, (row, (p, _)) in enumerate(zip(rows, items)):
        ids[i, width - len(row):] = row
        labels[i, width - len(row) + len(p):] = row[len(p):]
    return ids[:, :-1], labels[:, 1:]


class BudgetLoader:
    """Splits each global batch so that all processes get about the same padded area."""

    def __init__(self, ds, global_batch, rank, world, seed=0):
        self.ds, self.global_batch = ds, global_batch
        self.rank, self.world, self.seed, self.epoch = rank, world, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.ds) // self.global_batch

    def _parts(self, sizes, budget):
        """Contiguous parts of the sorted list whose padded area stays below the budget."""
        parts, start = [], 0
        for i in range(1, len(sizes) + 1):
            if i == len(sizes) or sizes[start] * (i + 1 - start) > budget:
                parts.append((start, i))
                start = i
        return parts

    def _share(self, idx):
        idx = sorted(idx, key=lambda i: -len(self.ds.items[i][0]))
        sizes = [len(self.ds.items[i][0]) + 4 for i in idx]
        budget = sizes[0]
        while len(self._parts(sizes, budget)) > self.world:
            budget += 4
        lo, hi = self._parts(sizes, budget)[self.rank]
        return idx[lo:hi]

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.ds), generator=g).tolist()
        for b in range(len(self)):
            idx = order[b * self.global_batch:(b + 1) * self.global_batch]
            yield collate([self.ds.items[i] for i in self._share(idx)])
