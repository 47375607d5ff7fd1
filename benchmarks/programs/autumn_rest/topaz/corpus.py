import torch


class Document:
    __slots__ = ("tokens", "label")

    def __init__(self, tokens, label):
        self.tokens, self.label = tokens, label


def synth_documents(count, vocab, classes, seed=0):
    g = torch.Generator().manual_seed(seed)
    lengths = (10 + 130 * torch.rand(count, generator=g) ** 3).long()
    docs = []
    for n in lengths.tolist():
        label = int(torch.randint(0, classes, (1,), generator=g))
        tokens = torch.randint(1, vocab, (n,), generator=g)
        topical = torch.rand(n, generator=g) < 0.3
        tokens[topical] = 1 + (tokens[topical] // classes * classes + label) % (vocab - 1)
        docs.append(Document(tokens, label))
    return docs


class LengthSortedShard:
    """Documents are kept in order of length, so that a batch needs little padding."""

    def __init__(self, docs, rank, world, batch):
        docs = sorted(docs, key=lambda d: len(d.tokens))
        self.docs = docs[: len(docs) // world * world][rank::world]
        self.batch = batch

    def __len__(self):
        return len(self.docs) // self.batch

    def epoch(self, number):
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(number)).tolist()
        for b in order:
            group = self.docs[b * self.batch:(b + 1) * self.batch]
            width = max(len(d.tokens) for d in group)
            tokens = torch.zeros(self.batch, width, dtype=torch.long)
            for i, d in enumerate(group):
                tokens[i, : len(d.tokens)] = d.tokens
            yield tokens, torch.tensor([d.label for d in group])
