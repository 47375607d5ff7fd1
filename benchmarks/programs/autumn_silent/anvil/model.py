import torch
import torch.nn as nn


class CharGRU(nn.Module):
    def __init__(self, vocab, hidden=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.proj = nn.Linear(hidden, vocab)

    def forward(self, ids):
        return self.proj(self.rnn(self.embed(ids))[0])


class MarkovText:
    """Second-order Markov chain text."""

    def __init__(self, vocab, seed):
        gen = torch.Generator().manual_seed(seed)
        self.table = torch.softmax(2.5 * torch.randn(vocab, vocab, vocab, generator=gen), dim=-1)
        self.vocab = vocab

    def batch(self, n, length, gen):
        ids = torch.randint(0, self.vocab, (n, 2), generator=gen)
        for _ in range(length - 1):
            probs = self.table[ids[:, -2], ids[:, -1]]
            ids = torch.cat([ids, torch.multinomial(probs, 1, generator=gen)], dim=1)
        return ids[:, :-1], ids[:, 1:]
