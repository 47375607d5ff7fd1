import torch
import torch.nn as nn


class TinyDetr(nn.Module):
    def __init__(self, num_classes, num_queries, d=48, heads=4):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, d, 3, 2, 1), nn.ReLU())
        self.pos = nn.Parameter(torch.randn(36, d) * 0.1)
        layer = nn.TransformerEncoderLayer(d, heads, 96, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(d, heads, 96, dropout=0.0, batch_first=True), 2)
        self.query = nn.Embedding(num_queries, d)
        self.cls = nn.Linear(d, num_classes + 1)
        self.box = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 4))

    def forward(self, x):
        f = self.backbone(x).flatten(2).transpose(1, 2) + self.pos
        h = self.decoder(self.query.weight.expand(len(x), -1, -1), self.encoder(f))
        return {"logits": self.cls(h), "boxes": self.box(h).sigmoid()}
