"""torchvision's ResNets and vision transformer, as chains of blocks, for images of any size and number of channels.

ResNets normalise by the batch (BatchNorm): each data-parallel rank normalises by its own share, so their loss curves differ
from `single`'s by more than rounding. That is how these models are trained, not an illness.
"""

# mypy: disable-error-code="no-any-return"
# What calling a module returns has no type in torch.

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.workloads.shapes import Shapes

SMALLEST_IMAGE = 32
"""Below 32 pixels a ResNet's five halvings leave less than one pixel."""
PATCH = 16
"""Pixels per side of a patch of vit_b_16."""


class ToRgb(nn.Module):
    """Images of three channels and `size` x `size` pixels, from images of any."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1] != 3:
            images = images.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
        if images.shape[-2:] != (self.size, self.size):
            images = nn.functional.interpolate(images, size=(self.size, self.size))
        return images


class Patches(nn.Module):
    """A vision transformer's entrance: patches, the class token and the positions."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.conv_proj = transformer.conv_proj
        self.class_token = transformer.class_token
        self.pos_embedding = transformer.encoder.pos_embedding
        self.dropout = transformer.encoder.dropout

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv_proj(images).flatten(2).transpose(1, 2)  # [batch, patches, width]
        token = self.class_token.expand(len(patches), -1, -1)
        return self.dropout(torch.cat([token, patches], dim=1) + self.pos_embedding)


class ClassHead(nn.Module):
    """A vision transformer's exit: the normalised class token, and a score for each class."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.norm = transformer.encoder.ln
        self.linear = transformer.heads

    def forward(self, stream: Tensor) -> Tensor:
        return self.linear(self.norm(stream)[:, 0])


def resnet18(shapes: Shapes) -> nn.Module:
    """torchvision's resnet18, untrained."""
    from torchvision.models import resnet18 as make

    return _resnet(make(num_classes=shapes.classes), shapes)


def resnet50(shapes: Shapes) -> nn.Module:
    """torchvision's resnet50, untrained."""
    from torchvision.models import resnet50 as make

    return _resnet(make(num_classes=shapes.classes), shapes)


def vit_b_16(shapes: Shapes) -> nn.Module:
    """torchvision's vit_b_16, untrained."""
    from torchvision.models import vit_b_16 as make

    size = -(-_image_size(shapes) // PATCH) * PATCH
    transformer = make(image_size=size, num_classes=shapes.classes)
    layers = {f"layer{number}": layer for number, layer in enumerate(transformer.encoder.layers)}
    return nn.Sequential(
        OrderedDict(rgb=ToRgb(size), patches=Patches(transformer), **layers, head=ClassHead(transformer))
    )


def _resnet(network: Any, shapes: Shapes) -> nn.Module:
    parts = OrderedDict(network.named_children())
    head = parts.pop("fc")
    return nn.Sequential(
        OrderedDict(rgb=ToRgb(_image_size(shapes)), **parts, flatten=nn.Flatten(), fc=head),
    )


def _image_size(shapes: Shapes) -> int:
    return max(SMALLEST_IMAGE, *shapes.inputs[1:])
