import torch


class Conversations:
    """Batches padded to their longest conversation."""

    def __init__(self, steps, rank, batch=4, vocab=128):
        self.steps, self.rank, self.batch, self.vocab = steps, rank, batch, vocab

    def __iter__(self):
        gen = torch.Generator().manual_seed(33 + self.rank)
        lengths = torch.Generator().manual_seed(32)
        for _ in range(self.steps):
            longest = int(torch.randint(17, 65, (1,), generator=lengths))
            ids = torch.zeros(self.batch, longest + 1, dtype=torch.long)
            for row in range(self.batch):
                n = longest + 1 if row == 0 else int(torch.randint(8, longest + 1, (1,), generator=gen))
                start = int(torch.randint(1, self.vocab, (1,), generator=gen))
                ids[row, :n] = 1 + (start + 5 * torch.arange(n)) % (self.vocab - 1)
            yield ids[:, :-1], ids[:, 1:]
