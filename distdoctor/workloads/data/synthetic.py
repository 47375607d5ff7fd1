"""Random samples of any shape, for predicting and measuring a model without its data: there is nothing to learn in them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from distdoctor.errors import WrongUse

SAMPLES = 4096
TEST_SAMPLES = 64


class RandomSamples(Dataset[tuple[Tensor, Tensor]]):
    """`samples` pairs; images [channels, height, width] float32 with a class each, or lines [length] int64 of tokens with the
    next tokens. Made when they are read, from their index."""

    def __init__(self, shape: tuple[int, ...], num_classes: int, samples: int) -> None:
        self.shape = shape
        self.num_classes = num_classes
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.Generator().manual_seed(index)
        if len(self.shape) == 1:
            line = torch.randint(self.num_classes, (self.shape[0] + 1,), generator=noise)
            return line[:-1].clone(), line[1:].clone()
        return torch.rand(self.shape, generator=noise), torch.randint(self.num_classes, (), generator=noise)


def tokens(text: str | None = None) -> tuple[RandomSamples, RandomSamples]:
    """`LENGTHxVOCABULARY`, for example 2048x50257."""
    return _both(_numbers("tokens", text or "1024x50257", ("LENGTH", "VOCABULARY")))


def images(text: str | None = None) -> tuple[RandomSamples, RandomSamples]:
    """`CHANNELSxHEIGHTxWIDTHxCLASSES`, for example 3x224x224x1000."""
    return _both(_numbers("images", text or "3x224x224x1000", ("CHANNELS", "HEIGHT", "WIDTH", "CLASSES")))


def _both(numbers: tuple[int, ...]) -> tuple[RandomSamples, RandomSamples]:
    return tuple(RandomSamples(numbers[:-1], numbers[-1], samples) for samples in (SAMPLES, TEST_SAMPLES))  # type: ignore[return-value]


def _numbers(name: str, text: str, names: tuple[str, ...]) -> tuple[int, ...]:
    parts = text.split("x")
    if len(parts) != len(names) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise WrongUse(
            f"--data {name}:{text} does not say {' x '.join(name.lower() for name in names)}",
            way_out=f"Write --data {name}:{'x'.join(names)} with whole numbers.",
        )
    return tuple(int(part) for part in parts)
