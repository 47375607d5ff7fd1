"""The reference data sets, by the names of `--data`. None is ever downloaded."""

from __future__ import annotations

from distdoctor.offers import DataSource

HOME = "distdoctor.workloads.data"

DIGITS = DataSource("digits", "the UCI handwritten digits, shipped with distdoctor", f"{HOME}.digits:make")
BYTES = DataSource("bytes", "a text as bytes (bytes:PATH), or Python's own handbook", f"{HOME}.text:make")
MNIST = DataSource("mnist", "mnist:PATH, torchvision's MNIST", f"{HOME}.torchvision_data:mnist", needs_path=True)
CIFAR10 = DataSource(
    "cifar10", "cifar10:PATH, torchvision's CIFAR-10", f"{HOME}.torchvision_data:cifar10", needs_path=True
)
IMAGEFOLDER = DataSource(
    "imagefolder", "imagefolder:PATH, one folder per class", f"{HOME}.torchvision_data:imagefolder", needs_path=True
)
FAKE = DataSource("fake", "noise, for measuring", f"{HOME}.torchvision_data:fake")
TOKENS = DataSource("tokens", "random tokens, tokens:LENGTHxVOCABULARY, for measuring", f"{HOME}.synthetic:tokens")
IMAGES = DataSource(
    "images", "random images, images:CHANNELSxHEIGHTxWIDTHxCLASSES, for measuring", f"{HOME}.synthetic:images"
)
