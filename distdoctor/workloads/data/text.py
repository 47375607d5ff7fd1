"""Text as bytes, for a model that says the next one: any file, or else the handbook that comes with every Python."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from distdoctor.errors import WrongUse

LENGTH = 64
TEST_EVERY = 10
USUAL_BYTES = 64 * 1024
"""Of Python's handbook: enough to learn from within seconds."""


class Lines(Dataset[tuple[Tensor, Tensor]]):
    """Pieces [LENGTH] int64 of a text, each with the same piece one byte further on."""

    num_classes = 256

    def __init__(self, text: Tensor, starts: list[int]) -> None:
        self.text = text
        self.starts = starts

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = self.starts[index]
        return self.text[start : start + LENGTH], self.text[start + 1 : start + LENGTH + 1]


def make(path: str | None = None) -> tuple[Lines, Lines]:
    """The text at `path`, or Python's handbook; each tenth piece is for testing."""
    text = torch.frombuffer(bytearray(_read(path)), dtype=torch.uint8).long()
    starts = range(0, len(text) - LENGTH, LENGTH)
    test = list(starts[TEST_EVERY - 1 :: TEST_EVERY])
    if not test:
        raise WrongUse(
            f"{path} holds {len(text)} bytes, too few for one test piece of {LENGTH}",
            way_out=f"Take a text of at least {(TEST_EVERY + 1) * LENGTH} bytes.",
        )
    return Lines(text, sorted(set(starts).difference(test))), Lines(text, test)


def _read(path: str | None) -> bytes:
    if path is None:
        return _python_handbook()[:USUAL_BYTES]
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise WrongUse(f"cannot read {path}: {error.strerror}", way_out="Write --data bytes:PATH of a file.") from error


def _python_handbook() -> bytes:
    """What `help("if")` and its like print: some 600 KB of English in the standard library (PSF licence)."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()
