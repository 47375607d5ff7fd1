import torch
import torch.nn as nn
import torch.nn.functional as F


class SeriesEncoder(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.conv = nn.Conv1d(1, d, 7, stride=4)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        return self.norm(self.conv(x[:, None]).transpose(1, 2))


class SeriesLM(nn.Module):
    """A text decoder that is prefixed with encoded time-series patches."""

    def __init__(self, vocab=40, d=48):
        super().__init__()
        self.encoder = SeriesEncoder(d)
        self.tok = nn.Embedding(vocab, d)
        self.decoder = nn.GRU(d, d, batch_first=True)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, series=None, ids=None, batch=None):
        if batch is not None:
            return self.compute_loss(batch)
        prefix = self.encoder(series)
        h, _ = self.decoder(torch.cat([prefix, self.tok(ids)], 1))
        return self.lm_head(h[:, prefix.size(1):])

    def compute_loss(self, batch):
        logits = self(batch["series"], batch["ids"][:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), batch["ids"][:, 1:])
