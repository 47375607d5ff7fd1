"""A model as a chain of blocks: where it can be cut into stages, sharded piece by piece, or recomputed block by block."""

from __future__ import annotations

import functools
from collections import OrderedDict

from torch import nn
from torch.utils.checkpoint import checkpoint

from distdoctor.errors import WrongUse

Block = tuple[str, nn.Module]


def blocks_of(model: nn.Module, *, purpose: str) -> list[Block]:
    """The named modules whose chain is the model's forward: an `nn.Sequential`'s children, or what its `blocks()` returns.

    `blocks()` returns modules in order, each of them a child (or a child's child) of the model.
    """
    if isinstance(model, nn.Sequential):
        return list(model.named_children())
    own_blocks = getattr(model, "blocks", None)
    if callable(own_blocks) and not isinstance(
        own_blocks, nn.Module
    ):  # a ModuleList of that name chains nothing by itself
        names = {module: name for name, module in model.named_modules()}
        return [(names[block], block) for block in own_blocks()]
    raise WrongUse(
        f"{type(model).__name__} cannot be cut into blocks, which {purpose} needs",
        way_out="Make the model an nn.Sequential, or give it a method `blocks()` that returns its modules in the order "
        "in which its forward chains them.",
    )


def cut(model: nn.Module, parts: int, *, purpose: str) -> list[nn.Sequential]:
    """The model in `parts` pieces of neighbouring blocks, each with parameters of its own, about equally heavy.

    The pieces keep the blocks' names, so the keys of their state dicts are those of the whole model.
    """
    blocks = blocks_of(model, purpose=purpose)
    weights = [sum(p.numel() for p in block.parameters()) for _, block in blocks]
    heavy = sum(weight > 0 for weight in weights)
    if heavy < parts:
        raise WrongUse(
            f"{purpose} cuts the model into {parts} pieces, but only {heavy} of its {len(blocks)} blocks have parameters",
            way_out="Use fewer ranks, or a longer model such as --model gpt.",
        )
    starts = _balanced_starts(weights, parts)
    ends = [*starts[1:], len(blocks)]
    return [_chain(blocks[start:end]) for start, end in zip(starts, ends, strict=True)]


def recompute_activations(model: nn.Module) -> None:
    """From now on each block but the last keeps only its input, and computes the rest again in backward."""
    for _, block in blocks_of(model, purpose="--checkpoint-activations")[:-1]:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def _chain(blocks: list[Block]) -> nn.Sequential:
    return nn.Sequential(OrderedDict((name.replace(".", "_"), block) for name, block in blocks))


def _balanced_starts(weights: list[int], parts: int) -> list[int]:
    """Where each part begins, so that the heaviest part is as light as possible and none is without weight."""

    @functools.cache
    def best(start: int, parts: int) -> tuple[float, tuple[int, ...]]:
        if parts == 1:
            total = sum(weights[start:])
            return (total if total else float("inf")), (start,)
        choices = []
        for end in range(start + 1, len(weights)):
            own = sum(weights[start:end])
            if own:
                heaviest, rest = best(end, parts - 1)
                choices.append((max(own, heaviest), (start, *rest)))
        return min(choices, default=(float("inf"), (start,)))

    return list(best(0, parts)[1])
