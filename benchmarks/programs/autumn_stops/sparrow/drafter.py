import torch
from torch import nn


class NoAnchorsError(RuntimeError):
    """Raised when no sequence of a batch is long enough to place a block."""


class BlockDrafter(nn.Module):
    """Predicts the next `block` tokens from the hidden state at random anchors."""

    def __init__(self, vocab, dim, block):
        super().__init__()
        self.block = block
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.heads = nn.ModuleList([nn.Linear(dim, vocab) for _ in range(block)])

    def select_anchors(self, lengths, per_seq=2):
        anchors = []
        for row, n in enumerate(lengths.tolist()):
            room = n - self.block
            if room <= 0:
                continue
            for k in range(per_seq):
                anchors.append((row, (k * 7 + row) % room))
        if not anchors:
            raise NoAnchorsError(f"no sequence longer than {self.block} tokens (max {int(lengths.max())})")
        return torch.tensor(anchors)

    def forward(self, tokens, lengths):
        anchors = self.select_anchors(lengths)
        hidden, _ = self.rnn(self.embed(tokens))
        state = hidden[anchors[:, 0], anchors[:, 1]]
        loss = 0.0
        for offset, head in enumerate(self.heads, start=1):
            target = tokens[anchors[:, 0], anchors[:, 1] + offset]
            loss = loss + nn.functional.cross_entropy(head(state), target)
        return loss / self.block
