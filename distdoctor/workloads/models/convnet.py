"""A small convolutional network. It normalises by groups of channels, which needs no statistics of the batch: so a batch that is
split over ranks trains like a whole one."""

# mypy: disable-error-code="no-any-return"
# What calling a module returns has no type in torch.

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from distdoctor.workloads.shapes import Shapes


class Stage(nn.Module):
    """A 3x3 convolution, group normalisation and ReLU; `stride` 2 halves the image."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(num_groups=8, num_channels=outputs)

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.relu(self.norm(self.conv(images)))


class Head(nn.Module):
    """The mean over the image, and one linear layer."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.mean(dim=(2, 3)))


def make(shapes: Shapes) -> nn.Module:
    """The network for images of any size with `shapes.inputs[0]` channels."""
    channels = shapes.inputs[0]
    return nn.Sequential(
        OrderedDict(
            first=Stage(channels, 16, stride=1),
            second=Stage(16, 32, stride=2),
            third=Stage(32, 64, stride=2),
            head=Head(64, shapes.classes),
        )
    )
