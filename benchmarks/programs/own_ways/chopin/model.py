import torch.nn.functional as F
from torch import nn


class LineModel(nn.Module):
    """Causal convolutional language model with the call signature Trainer expects."""

    def __init__(self, vocab=64, width=48, kernel=3, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, kernel) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)
        self.kernel = kernel

    def forward(self, input_ids, labels=None):
        h = self.emb(input_ids)
        for conv, norm in zip(self.convs, self.norms):
            x = F.pad(norm(h).transpose(1, 2), (self.kernel - 1, 0))
            h = h + F.gelu(conv(x)).transpose(1, 2)
        logits = self.head(h)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}
