from torch import nn

from .quantizer import Quantizer


class AudioCodec(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(1, 16, 8, stride=4, padding=2), nn.ELU(), nn.Conv1d(16, dim, 4, stride=2, padding=1))
        self.quant = Quantizer(dim=dim)
        self.dec = nn.Sequential(nn.ConvTranspose1d(dim, 16, 4, stride=2, padding=1), nn.ELU(), nn.ConvTranspose1d(16, 1, 8, stride=4, padding=2))

    def forward(self, wav):
        z = self.enc(wav).transpose(1, 2)
        q, commit, idx = self.quant(z)
        return self.dec(q.transpose(1, 2)), commit, idx
