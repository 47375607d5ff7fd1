"""GPTs in published sizes, for predicting and measuring: a small one that fits everywhere, and one that fits on few machines."""

# mypy: disable-error-code="no-any-return"
# What calling a module returns has no type in torch.

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distdoctor.workloads.shapes import Shapes


@dataclass(frozen=True)
class Size:
    """Features of the stream, number of blocks, attention heads of a block."""

    width: int
    blocks: int
    heads: int


SMALL = Size(width=768, blocks=12, heads=12)
"""GPT-2 small (Radford et al. 2019), with an output layer of its own: 163 million parameters for a vocabulary of 50257."""
SEVEN_BILLION = Size(width=4096, blocks=32, heads=32)
"""The shape of GPT-3 6.7B (Brown et al. 2020, table 2.1), with an output layer of its own."""


class Embed(nn.Module):
    """What each token is and where it stands."""

    def __init__(self, classes: int, length: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(classes, width)
        self.position = nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, 4 * width)
        self.feed_out = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream))
        return stream + self.feed_out(nn.functional.gelu(self.feed_in(self.feed_norm(stream))))

    def attention(self, stream: Tensor) -> Tensor:
        # [batch, length, 3 * width] -> three of [batch, heads, length, width / heads]
        query, key, value = self.attention_in(stream).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).flatten(2))


class Head(nn.Module):
    """A score for each next token."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        return self.linear(self.norm(stream))


def small(shapes: Shapes) -> nn.Module:
    """GPT-2 small for lines of `shapes.inputs[0]` tokens."""
    return _gpt(shapes, SMALL)


def seven_billion(shapes: Shapes) -> nn.Module:
    """A GPT of about seven billion parameters for lines of `shapes.inputs[0]` tokens."""
    return _gpt(shapes, SEVEN_BILLION)


def _gpt(shapes: Shapes, size: Size) -> nn.Sequential:
    blocks = {f"block{number}": Block(size.width, size.heads) for number in range(size.blocks)}
    embed = Embed(shapes.classes, shapes.inputs[0], size.width)
    return nn.Sequential(OrderedDict(embed=embed, **blocks, head=Head(shapes.classes, size.width)))
