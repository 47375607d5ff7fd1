import torch
from torch import nn


class WN(nn.Module):
    """Gated dilated stack conditioned on a mel spectrogram."""

    def __init__(self, mel, channels, layers, kernel=3):
        super().__init__()
        self.start = nn.Conv1d(4, channels, 1)
        self.dilated = nn.ModuleList()
        self.cond = nn.ModuleList()
        self.res = nn.ModuleList()
        for i in range(layers):
            d = 2 ** (i % 5)
            self.dilated.append(nn.utils.parametrizations.weight_norm(
                nn.Conv1d(channels, 2 * channels, kernel, dilation=d, padding=d * (kernel - 1) // 2)))
            self.cond.append(nn.Conv1d(mel, 2 * channels, 1))
            self.res.append(nn.utils.parametrizations.weight_norm(nn.Conv1d(channels, 2 * channels, 1)))
        self.end = nn.Conv1d(channels, 8, 1)
        nn.init.zeros_(self.end.weight)
        nn.init.zeros_(self.end.bias)

    def forward(self, audio, mel):
        x = self.start(audio)
        skip = 0
        for dilated, cond, res in zip(self.dilated, self.cond, self.res):
            a, b = (dilated(x) + cond(mel)).chunk(2, 1)
            r, s = res(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x = x + r
            skip = skip + s
        return self.end(skip)


class Glow(nn.Module):
    def __init__(self, mel=16, flows=4, channels=16, layers=8):
        super().__init__()
        self.mixers = nn.ParameterList(torch.linalg.qr(torch.randn(8, 8))[0] for _ in range(flows))
        self.nets = nn.ModuleList(WN(mel, channels, layers) for _ in range(flows))

    def forward(self, audio, mel):
        z, logdet = audio, 0
        n = audio.shape[0] * audio.shape[2]
        for mixer, net in zip(self.mixers, self.nets):
            z = torch.einsum("ij,bjt->bit", mixer, z)
            logdet = logdet + n * torch.linalg.slogdet(mixer)[1]
            a, b = z.chunk(2, 1)
            s, t = net(a, mel).chunk(2, 1)
            z = torch.cat([a, torch.exp(s) * b + t], 1)
            logdet = logdet + s.sum()
        return z, logdet


def glow_loss(z, logdet, sigma=1.0):
    return ((z * z).sum() / (2 * sigma * sigma) - logdet) / z.numel()
