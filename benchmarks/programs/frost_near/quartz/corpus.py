import torch


class Corpus:
    def __init__(self, docs=600, vocab=150, topics=6, seed=1):
        g = torch.Generator().manual_seed(seed)
        self.vocab, self.topics = vocab, topics
        owner = torch.randint(0, topics, (vocab,), generator=g)
        self.docs = []
        for _ in range(docs):
            n = int(torch.randint(5, 60, (1,), generator=g))
            ids = torch.randint(0, vocab, (n,), generator=g)
            self.docs.append((ids, owner[ids]))


def batches(corpus, rank, world, size=6, seed=1):
    epoch = 0
    while True:
        order = torch.randperm(len(corpus.docs), generator=torch.Generator().manual_seed(seed + epoch))
        mine = order[rank::world].tolist()
        for i in range(0, len(mine) - size + 1, size):
            rows = [corpus.docs[j] for j in mine[i:i + size]]
            longest = max(len(r[0]) for r in rows)
            ids = torch.zeros(size, longest, dtype=torch.long)
            topic, keep = ids.clone(), torch.zeros(size, longest)
            for k, (a, b) in enumerate(rows):
                ids[k, :len(a)], topic[k, :len(a)], keep[k, :len(a)] = a, b, 1.0
            yield ids, topic, keep
        epoch += 1
