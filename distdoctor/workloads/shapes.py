"""What a model must know of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distdoctor.errors import WrongUse


@dataclass(frozen=True)
class Shapes:
    """The shape of one input without the batch (`(1, 8, 8)` for an image, `(64,)` for a line of bytes) and the number of
    classes that an output tells apart."""

    inputs: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, dataset: Any) -> Shapes:
        """The shapes of a map-style data set of `(input, target)` pairs that has `classes` or `num_classes`."""
        inputs, _ = dataset[0]
        return cls(tuple(inputs.shape), _number_of_classes(dataset))


def _number_of_classes(dataset: Any) -> int:
    if hasattr(dataset, "num_classes"):
        return int(dataset.num_classes)
    if hasattr(dataset, "classes"):
        return len(dataset.classes)
    if hasattr(dataset, "dataset"):  # a Subset of a data set that knows
        return _number_of_classes(dataset.dataset)
    if hasattr(dataset, "tensors"):  # a TensorDataset holds all of its targets
        return int(dataset.tensors[1].max()) + 1
    raise WrongUse(
        f"{type(dataset).__name__} does not say how many classes it has",
        way_out="Give the data set an attribute `num_classes`.",
    )
