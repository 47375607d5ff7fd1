"""A residual network of linear layers: small, quick, and enough for the digits.

Eight blocks, so that it can be cut into up to eight stages; layers in pairs, so that it can be split within.
"""

# mypy: disable-error-code="no-any-return"
# What calling a module returns has no type in torch.

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import Tensor, nn

from distdoctor.workloads.shapes import Shapes

WIDTH = 64
BLOCKS = 6


class Entrance(nn.Module):
    """Any input as `WIDTH` features."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs.flatten(1))


class Block(nn.Module):
    """Two linear layers with a ReLU between, added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, 2 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, features: Tensor) -> Tensor:
        return features + self.narrow(nn.functional.relu(self.widen(self.norm(features))))


class Head(nn.Module):
    """A score for each class."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, classes)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(self.norm(features))


class Mlp(nn.Sequential):
    """An entrance, `BLOCKS` residual blocks and a head."""

    def __init__(self, inputs: int, classes: int) -> None:
        blocks = {f"block{number}": Block() for number in range(BLOCKS)}
        super().__init__(OrderedDict(entrance=Entrance(inputs), **blocks, head=Head(classes)))

    def tensor_plan(self) -> dict[str, str]:
        """The first layer of a block splits its outputs over the ranks, the second its inputs: one sum per block."""
        plan = {f"block{number}.widen": "colwise" for number in range(BLOCKS)}
        return plan | {f"block{number}.narrow": "rowwise" for number in range(BLOCKS)}


def make(shapes: Shapes) -> nn.Module:
    """The network for these inputs and classes."""
    return Mlp(prod(shapes.inputs), shapes.classes)
