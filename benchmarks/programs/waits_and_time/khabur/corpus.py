import torch


class Corpus:
    """Documents whose next token follows from the last one; lengths have a long tail."""

    def __init__(self, docs, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        tail = torch.rand(docs, generator=g)
        lengths = (12 + 160 * tail**2).long().tolist()
        step = torch.randint(1, vocab - 1, (docs,), generator=g).tolist()
        self.docs = []
        for n, s in zip(lengths, step):
            ids = (torch.arange(n) * s) % (vocab - 1) + 1
            noisy = torch.rand(n, generator=g) < 0.1
            ids[noisy] = torch.randint(1, vocab, (int(noisy.sum()),), generator=g)
            self.docs.append(ids)

    def __len__(self):
        return len(self.docs)


class LengthBuckets:
    """Batches of documents of similar length so that little padding is needed."""

    def __init__(self, corpus, batch, rank, world, seed):
        self.corpus, self.batch, self.seed = corpus, batch, seed
        by_length = sorted(range(len(corpus)), key=lambda i: len(corpus.docs[i]))
        groups = [by_length[i:i + batch] for i in range(0, len(by_length) - batch + 1, batch)]
        self.rounds = [groups[k:k + world] for k in range(0, len(groups) - world + 1, world)]
        self.rank = rank
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.rounds)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + 101 * self.epoch)
        for k in torch.randperm(len(self.rounds), generator=g).tolist():
            docs = [self.corpus.docs[i] for i in self.rounds[k][self.rank]]
            yield nn_pad(docs)


def nn_pad(docs):
    width = max(len(d) for d in docs)
    out = torch.zeros(len(docs), width, dtype=torch.long)
    for row, d in enumerate(docs):
        out[row, :len(d)] = d
    return out
