import torch
from torch import nn


class CharGru(nn.Module):
    def __init__(self, vocab, dim=32, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)

    @torch.no_grad()
    def sample(self, start, steps):
        ids = [start]
        state = None
        x = torch.tensor([[start]])
        for _ in range(steps):
            h, state = self.rnn(self.emb(x), state)
            x = self.out(h[:, -1]).argmax(-1, keepdim=True)
            ids.append(int(x))
        return ids
