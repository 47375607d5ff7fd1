"""What stands between `backward` and the loss: words that the probe has read from the graph, as numbers."""

from __future__ import annotations

_MEANS = ("mean",)


def factor_of(roots: str) -> float | None:
    """The product of all factors (`div 4;NllLoss mean` is 0.25); None when one of them could not be read.

    The multiplication by a GradScaler's scale is left out: it is undone before the step.
    """
    *operations, _ = roots.split(";") if roots else [""]
    factor = 1.0
    for number, operation in enumerate(operations):
        word, _, value = operation.removesuffix(" own").partition(" ")
        scale = word == "mul" and number == 0 and _is_scale(value)
        if scale:
            continue
        try:
            amount = float(value)
        except ValueError:
            return None
        if word == "div" and not amount:
            return None
        factor = factor / amount if word == "div" else factor * amount
    return factor


def factor_around_mean(roots: str) -> float | None:
    """The product of all factors around a sum that is divided by a whole number of its own: `mul 2;div 37 own;NllLoss sum` is 2.

    None where there is no such division, or a factor could not be read.
    """
    *operations, last = roots.split(";")
    word, *value = operations[-1].split() if operations else [""]
    if reads_as_mean(roots) or word != "div" or value[1:] != ["own"] or not value[0].isdigit():
        return None
    return factor_of(";".join([*operations[:-1], last]))


def factor_around_window(roots: str, world_size: int) -> tuple[int, float] | None:
    """A sum that is divided by a whole number, which is the same in all micro-batches of a step, and multiplied by the number of
    ranks, as what is averaged over them has to be: the number, and the product of all other factors. `div 4;div 406;mul 2;NllLoss
    sum` of two ranks is (406, 0.25). None where it is not read so."""
    *operations, last = roots.split(";")
    if reads_as_mean(roots) or f"mul {world_size}" not in operations or world_size < 2:
        return None
    counts = [one for one in operations if one.startswith("div ") and one[4:].isdigit()]
    if not counts:
        return None
    count = max(counts, key=lambda one: int(one[4:]))
    operations.remove(count)
    operations.remove(f"mul {world_size}")
    factor = factor_of(";".join([*operations, last]))
    return None if factor is None else (int(count[4:]), factor)


def _is_scale(value: str) -> bool:
    """A power of two beyond any number of micro-steps, or a tensor on a device: what GradScaler multiplies by."""
    if value == "tensor":
        return True
    try:
        amount = float(value)
    except ValueError:
        return False
    return amount >= 128 and amount == int(amount) and int(amount) & (int(amount) - 1) == 0


def reads_as_mean(roots: str) -> bool:
    """Whether the loss itself is a mean over its batch."""
    last = roots.rpartition(";")[2]
    return bool(last) and last.split()[-1] in _MEANS
