import torch.nn.functional as F
from torch import nn

from batches import SKIP


class Tagger(nn.Module):
    def __init__(self, vocab, tags, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, tags)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def tag_loss(logits, tags):
    loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=SKIP, reduction="sum")
    return loss, int((tags != SKIP).sum())
