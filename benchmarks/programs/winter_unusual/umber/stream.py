import torch
from torch.utils.data import IterableDataset, get_worker_info


class Shards:
    """Documents of very different length, stored as numbered shards that can be regenerated from their number."""

    def __init__(self, n_shards, per_shard, vocab, seed):
        self.n, self.per, self.vocab, self.seed = n_shards, per_shard, vocab, seed
        g = torch.Generator().manual_seed(seed)
        self.table = torch.randint(0, vocab, (vocab, 3), generator=g).tolist()

    def read(self, k):
        g = torch.Generator().manual_seed(self.seed * 1000 + k)
        lens = (torch.rand(self.per, generator=g) ** 2 * 90 + 8).long().tolist()
        for n in lens:
            pick = torch.multinomial(torch.tensor([0.75, 0.15, 0.1]), n, True, generator=g).tolist()
            t = int(torch.randint(0, self.vocab, (1,), generator=g))
            doc = [t]
            for c in pick:
                t = self.table[t][c]
                doc.append(t)
            yield torch.tensor(doc)


class TokenBudgetStream(IterableDataset):
    """Endless stream of padded batches with at most `budget` padded tokens. The order of shards is drawn anew per
    pass, the same on every rank; a rank reads each world-th shard of it. Documents go through a bounded buffer."""

    def __init__(self, shards, budget, rank, world, buffer=64):
        self.shards, self.budget, self.rank, self.world, self.buffer = shards, budget, rank, world, buffer
        assert get_worker_info() is None and shards.n % world == 0

    def _documents(self):
        epoch = 0
        while True:
            order = torch.randperm(self.shards.n, generator=torch.Generator().manual_seed(epoch)).tolist()
            for k in order[self.rank :: self.world]:
                yield from self.shards.read(k)
            epoch += 1

    def __iter__(self):
        pool = []
        g = torch.Generator().manual_seed(10 + self.rank)
        for doc in self._documents():
            pool.append(doc)
            if len(pool) < self.buffer:
                continue
            pool.sort(key=len)
            batches, cur = [], []
            for d in pool:
                if cur and (len(cur) + 1) * (len(d) - 1) > self.budget:
                    batches.append(cur)
                    cur = []
                cur.append(d)
            pool = []
            if cur:
                batches.append(cur)
            for i in torch.randperm(len(batches), generator=g).tolist():
                yield self._pad(batches[i])

    @staticmethod
    def _pad(docs):
        x = torch.zeros(len(docs), max(len(d) for d in docs) - 1, dtype=torch.long)
        y = torch.full_like(x, -1)
        for i, d in enumerate(docs):
            x[i, : len(d) - 1], y[i, : len(d) - 1] = d[:-1], d[1:]
        return x, y
