import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width * 2, 3, stride=2, padding=1), nn.GroupNorm(4, width * 2), nn.ReLU(),
        )
        self.project = nn.Linear(width * 2 * 16, width * 4)

    def forward(self, image):
        return self.project(self.stem(image).flatten(1))


class Decoder(nn.Module):
    """Class scores for every picture, and a box for the annotated ones."""

    def __init__(self, width, classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(width * 4, width * 4), nn.ReLU())
        self.classes = nn.Linear(width * 4, classes)
        self.box = nn.Sequential(nn.Linear(width * 4, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, code):
        hidden = self.trunk(code)
        return self.classes(hidden), self.box(hidden).sigmoid()
