import torch
from torch import nn


class Codec(nn.Module):
    """Autoencoder for signal windows."""

    def __init__(self, length, latent):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(length, 96), nn.GELU(), nn.Linear(96, latent))
        self.up = nn.Sequential(nn.Linear(latent, 96), nn.GELU(), nn.Linear(96, length))

    def encode(self, window):
        return torch.tanh(self.down(window))

    def decode(self, code):
        return self.up(code)

    def forward(self, window):
        return self.decode(self.encode(window))


class Dynamics(nn.Module):
    """Predicts the code of the next window from the codes of three."""

    def __init__(self, latent, hidden):
        super().__init__()
        self.cell = nn.GRU(latent, hidden, batch_first=True)
        self.head = nn.Linear(hidden, latent)

    def forward(self, codes):
        return self.head(self.cell(codes)[0][:, -1])
