"""torchvision's data sets from disk, never downloaded: where files are missing, the error says which folder to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import Subset

from distdoctor.errors import WrongUse

FAKE_SAMPLES = 512
FAKE_IMAGE = (3, 32, 32)
TEST_EVERY = 5


def mnist(path: str) -> tuple[Any, Any]:
    """MNIST in the folder that holds `MNIST/raw`."""
    from torchvision.datasets import MNIST

    return _from_disk(MNIST, path)


def cifar10(path: str) -> tuple[Any, Any]:
    """CIFAR-10 in the folder that holds `cifar-10-batches-py`."""
    from torchvision.datasets import CIFAR10

    return _from_disk(CIFAR10, path)


def imagefolder(path: str) -> tuple[Any, Any]:
    """`PATH/train` and `PATH/val` with one folder per class; without these two, each fifth image of PATH is for testing."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import Compose, Resize, ToTensor

    if not Path(path).is_dir():
        raise WrongUse(f"there is no folder {path}", way_out="Write --data imagefolder:PATH of a folder of images.")
    transform = Compose([Resize((224, 224)), ToTensor()])
    folder = Path(path)
    if (folder / "train").is_dir() and (folder / "val").is_dir():
        return ImageFolder(str(folder / "train"), transform), ImageFolder(str(folder / "val"), transform)
    images = ImageFolder(path, transform)
    test = range(TEST_EVERY - 1, len(images), TEST_EVERY)
    train = sorted(set(range(len(images))).difference(test))
    return Subset(images, train), Subset(images, list(test))


def fake() -> tuple[Any, Any]:
    """Noise with random labels [3, 32, 32], for measuring speed and memory: there is nothing to learn in it."""
    from torchvision.datasets import FakeData
    from torchvision.transforms import ToTensor

    images = FakeData(FAKE_SAMPLES, FAKE_IMAGE, num_classes=10, transform=ToTensor())
    test = FakeData(FAKE_SAMPLES // 4, FAKE_IMAGE, 10, transform=ToTensor(), random_offset=FAKE_SAMPLES)
    return images, test


def _from_disk(kind: Any, path: str) -> tuple[Any, Any]:
    from torchvision.transforms import ToTensor

    try:
        return (
            kind(path, train=True, download=False, transform=ToTensor()),
            kind(path, train=False, download=False, transform=ToTensor()),
        )
    except RuntimeError as error:
        raise WrongUse(
            f"{kind.__name__} is not in {path}: {error}",
            way_out="Give the folder into which torchvision has stored it; distdoctor does not download.",
        ) from error
