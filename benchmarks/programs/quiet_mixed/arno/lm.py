from torch import nn


class LM(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        return self.head(self.norm(self.mix(self.emb(ids))[0]))


def build_lm(vocab, width):
    return LM(vocab, width)
