import torch
import torch.nn as nn


class ObsEncoder(nn.Module):
    """Image patches + proprioception -> one feature per action token."""

    def __init__(self, dim=96, patches=16, chunk=4):
        super().__init__()
        self.chunk = chunk
        self.patch = nn.Linear(48, dim)
        self.prop = nn.Linear(8, dim)
        self.query = nn.Parameter(torch.randn(chunk, dim) * 0.02)
        self.pos = nn.Parameter(torch.randn(patches + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2)

    def forward(self, image, prop):
        tok = torch.cat([self.patch(image), self.prop(prop).unsqueeze(1)], dim=1) + self.pos
        tok = torch.cat([tok, self.query.expand(tok.size(0), -1, -1)], dim=1)
        return self.blocks(tok)[:, -self.chunk:]


class ActionHead(nn.Module):
    def __init__(self, dim=96, hidden=128, action_dim=7):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(),
            nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, action_dim),
        )

    def predict_action(self, hidden_states):
        return self.net(hidden_states)

    def forward(self, hidden_states):
        return self.predict_action(hidden_states)
