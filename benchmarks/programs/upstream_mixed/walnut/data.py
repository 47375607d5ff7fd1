import torch


class Instructions:
    """Micro-batches of padded conversations; only the answers' tokens carry a label."""

    def __init__(self, rank, vocab=160, batch=2, length=32):
        self.gen = torch.Generator().manual_seed(80 + rank)
        self.vocab, self.batch, self.length = vocab, batch, length

    def next(self):
        start = torch.randint(0, self.vocab, (self.batch, 1), generator=self.gen)
        ids = (start + 3 * torch.arange(self.length + 1)) % self.vocab
        labels = ids[:, 1:].clone()
        for row in range(self.batch):
            prompt = int(torch.randint(2, self.length - 2, (1,), generator=self.gen))
            labels[row, :prompt] = -100
        return ids[:, :-1], labels
