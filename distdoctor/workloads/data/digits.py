"""The UCI handwritten digits: 1,797 images of 8 x 8 pixels, shipped with distdoctor (source and licence beside the data)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

FILE = Path(__file__).parent.parent / "digits" / "digits.npz"
TEST_EVERY = 5
"""Each fifth image is a test image: 1,438 to train with, 359 to test with. 359 is prime, so that any number of ranks has to
pad its last batch, and a metric that counts padding is wrong."""
MEAN, DEVIATION = 4.88, 6.02
"""Of all pixels of all images, whose values go from 0 to 16."""


class Digits(Dataset[tuple[Tensor, int]]):
    """Images [1, 8, 8] with mean 0 and deviation 1 over the whole set, and the digit that each shows."""

    num_classes = 10

    def __init__(self, images: Tensor, labels: list[int]) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], self.labels[index]


def make() -> tuple[Digits, Digits]:
    """The training set and the test set, always split in the same way."""
    with np.load(FILE) as stored:
        images = (torch.from_numpy(stored["images"]).float().unsqueeze(1) - MEAN) / DEVIATION
        labels = stored["labels"].tolist()
    test = [index for index in range(len(labels)) if index % TEST_EVERY == TEST_EVERY - 1]
    train = sorted(set(range(len(labels))).difference(test))
    return Digits(images[train], [labels[i] for i in train]), Digits(images[test], [labels[i] for i in test])
