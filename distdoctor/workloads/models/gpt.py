"""A small GPT over bytes: it learns to say the next byte of a text.

Queries, keys and values are three layers, not one, so that tensor parallelism can give each rank whole heads.
"""

# mypy: disable-error-code="no-any-return"
# What calling a module returns has no type in torch.

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from distdoctor.workloads.shapes import Shapes

WIDTH = 64
BLOCKS = 6
HEAD_WIDTH = 16


class Embed(nn.Module):
    """What each byte is and where it stands."""

    def __init__(self, classes: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(classes, WIDTH)
        self.position = nn.Embedding(length, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.token(tokens) + self.position(positions)


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.feed_norm = nn.LayerNorm(WIDTH)
        self.feed_in = nn.Linear(WIDTH, 4 * WIDTH)
        self.feed_out = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream))
        return stream + self.feed_out(nn.functional.gelu(self.feed_in(self.feed_norm(stream))))

    def attention(self, stream: Tensor) -> Tensor:
        # -1 heads: as many as this rank holds, which is all of them unless tensor parallelism has split the layers.
        query, key, value = (
            layer(stream).unflatten(2, (-1, HEAD_WIDTH)).transpose(1, 2)  # [batch, heads, length, HEAD_WIDTH]
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).flatten(2))


class Head(nn.Module):
    """A score for each next byte."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, classes)

    def forward(self, stream: Tensor) -> Tensor:
        return self.linear(self.norm(stream))


class Gpt(nn.Sequential):
    """An embedding, `BLOCKS` blocks and a head."""

    def __init__(self, classes: int, length: int) -> None:
        blocks = {f"block{number}": Block() for number in range(BLOCKS)}
        super().__init__(OrderedDict(embed=Embed(classes, length), **blocks, head=Head(classes)))

    def tensor_plan(self) -> dict[str, str]:
        """Whole heads and slices of the feed-forward layer per rank; two sums over the ranks per block."""
        split_outputs, split_inputs = ("query", "key", "value", "feed_in"), ("attention_out", "feed_out")
        plan = {f"block{n}.{layer}": "colwise" for n in range(BLOCKS) for layer in split_outputs}
        return plan | {f"block{n}.{layer}": "rowwise" for n in range(BLOCKS) for layer in split_inputs}


def make(shapes: Shapes) -> nn.Module:
    """The model for lines of `shapes.inputs[0]` bytes."""
    return Gpt(shapes.classes, shapes.inputs[0])
