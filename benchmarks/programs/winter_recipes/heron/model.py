import torch.nn as nn


class ConformerLite(nn.Module):
    """Convolutional subsampling by four, depthwise conv + attention blocks, CTC head."""

    def __init__(self, feats=40, dim=96, layers=2, vocab=30):
        super().__init__()
        self.sub = nn.Sequential(
            nn.Conv1d(feats, dim, 3, stride=2, padding=1), nn.SiLU(), nn.Conv1d(dim, dim, 3, stride=2, padding=1), nn.SiLU()
        )
        self.convs = nn.ModuleList(
            nn.Sequential(nn.Conv1d(dim, dim, 15, padding=7, groups=dim), nn.SiLU(), nn.Conv1d(dim, dim, 1))
            for _ in range(layers)
        )
        self.attn = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(dim, vocab)

    @staticmethod
    def out_lengths(n):
        n = (n - 1) // 2 + 1
        return (n - 1) // 2 + 1

    def forward(self, x, lengths):
        h = self.sub(x.transpose(1, 2))
        lengths = self.out_lengths(lengths)
        pad = lengths.new_tensor(range(h.size(-1)))[None] >= lengths[:, None]
        for conv, attn in zip(self.convs, self.attn):
            h = h + conv(h)
            h = attn(h.transpose(1, 2), src_key_padding_mask=pad).transpose(1, 2)
        return self.head(h.transpose(1, 2)).log_softmax(-1), lengths
