import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

HOP = 16


class Generator(nn.Module):
    def __init__(self, mels=40, width=48):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(mels, width, 7, padding=3))
        self.ups = nn.ModuleList(
            weight_norm(nn.ConvTranspose1d(width >> i, width >> (i + 1), 8, stride=4, padding=2)) for i in range(2)
        )
        self.res = nn.ModuleList(weight_norm(nn.Conv1d(width >> (i + 1), width >> (i + 1), 5, padding=2)) for i in range(2))
        self.post = weight_norm(nn.Conv1d(width >> 2, 1, 7, padding=3))

    def forward(self, mel):
        x = self.pre(mel)
        for up, res in zip(self.ups, self.res):
            x = up(F.leaky_relu(x, 0.1))
            x = x + res(F.leaky_relu(x, 0.1))
        return torch.tanh(self.post(F.leaky_relu(x, 0.1)))


class PeriodDiscriminator(nn.Module):
    def __init__(self, period, width=16):
        super().__init__()
        self.period = period
        chans = [1, width, 2 * width, 2 * width]
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), stride=(3, 1), padding=(2, 0))) for a, b in zip(chans, chans[1:])
        )
        self.post = weight_norm(nn.Conv2d(2 * width, 1, (3, 1), padding=(1, 0)))

    def forward(self, wav):
        x = F.pad(wav, (0, -wav.size(-1) % self.period))
        x = x.view(x.size(0), 1, -1, self.period)
        feats = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            feats.append(x)
        return self.post(x).flatten(1), feats


class MultiPeriodDiscriminator(nn.Module):
    def __init__(self, periods=(2, 3, 5)):
        super().__init__()
        self.subs = nn.ModuleList(PeriodDiscriminator(p) for p in periods)

    def forward(self, wav):
        return [sub(wav) for sub in self.subs]
