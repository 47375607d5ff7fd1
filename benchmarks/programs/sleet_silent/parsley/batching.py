import torch


def make_corpus(n, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        length = int(torch.randint(6, 60, (1,), generator=g))
        start, stride = torch.randint(1, vocab, (2,), generator=g).tolist()
        out.append((start + stride % 5 * torch.arange(length)) % (vocab - 1) + 1)
    return out


class TokenBudget:
    """Deals sentences to ranks so that every update has about the same number of tokens on each of them.

    The number of micro batches per update is whatever the packing gives, it differs from rank to rank.
    """

    def __init__(self, corpus, rank, world, budget, micro_tokens, seed):
        self.corpus, self.rank, self.world = corpus, rank, world
        self.budget, self.micro_tokens, self.seed = budget, micro_tokens, seed

    def updates(self, epoch):
        g = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(len(self.corpus), generator=g).tolist()
        bins, load = [[] for _ in range(self.world)], [0] * self.world
        for i in order:
            w = load.index(min(load))
            bins[w].append(i)
            load[w] += len(self.corpus[i])
            if min(load) >= self.budget:
                yield list(self._micro(bins[self.rank]))
                bins, load = [[] for _ in range(self.world)], [0] * self.world

    def _micro(self, ids):
        cur, widest = [], 0
        for i in sorted(ids, key=lambda k: len(self.corpus[k])):
            widest = max(widest, len(self.corpus[i]))
            if cur and widest * (len(cur) + 1) > self.micro_tokens:
                yield self._pad(cur)
                cur, widest = [], len(self.corpus[i])
            cur.append(i)
        if cur:
            yield self._pad(cur)

    def _pad(self, ids):
        return torch.nn.utils.rnn.pad_sequence([self.corpus[i] for i in ids], batch_first=True)
