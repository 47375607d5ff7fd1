"""Digests of what is written into a file, by a bounded look: enough to tell whether two ranks wrote the same."""

from __future__ import annotations

import hashlib
import os
from itertools import islice
from typing import Any

import torch

from distdoctor.probe.tensors.digests import is_readable

MOST_PARTS = 2000  # of nested containers
LARGEST_BYTES = 1 << 20  # of one array or file; of larger ones so many elements, or its beginning, are looked at
LETTERS = 4096  # of one text
ELEMENTS = 512


def digest_of_value(value: Any) -> int:
    """A digest of what a call writes; 0 where nothing of it could be looked at. No method of a stranger's class is called."""
    found, stack, known = hashlib.blake2b(digest_size=8), [value], False
    for _ in range(MOST_PARTS):
        if not stack:
            break
        one = stack.pop()
        if isinstance(one, dict):
            found.update(b"{%d" % dict.__len__(one))
            stack += [part for pair in islice(dict.items(one), MOST_PARTS) for part in pair]
        elif isinstance(one, list):
            found.update(b"[%d" % list.__len__(one))
            stack += islice(list.__iter__(one), MOST_PARTS)
        elif isinstance(one, tuple):
            found.update(b"(%d" % tuple.__len__(one))
            stack += islice(tuple.__iter__(one), MOST_PARTS)
        else:
            data = _bytes_of(one)
            known = known or data is not None
            found.update(data if data is not None else type(one).__name__.encode())
    return _number(found.digest()) if known else 0


def digest_of_file(path: str) -> int:
    """A digest of the size of a file and of its first `LARGEST_BYTES`. OSError: it cannot be read, or is a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = hashlib.blake2b(b"%d." % os.fstat(fd).st_size, digest_size=8)
        found.update(os.pread(fd, LARGEST_BYTES, 0))
        return _number(found.digest())
    finally:
        os.close(fd)


def _number(digest: bytes) -> int:
    """As an event holds it: positive, and never 0, which stands for nothing known."""
    return int.from_bytes(digest, "little") >> 1 or 1


def _bytes_of(one: Any) -> bytes | None:
    """What is looked at of a value that holds no others; None of what is not known."""
    kind, library = type(one), type(one).__module__.partition(".")[0]
    if kind in (str, bytes):
        text = one[:LETTERS]
        return b"%d:" % len(one) + bytes(text if kind is bytes else text.encode("utf-8", "replace"))
    if one is None or kind in (bool, int, float):
        return repr(one).encode()
    if kind in (torch.Tensor, torch.nn.Parameter):
        if not is_readable(one) or one.device.type != "cpu" or not one.is_contiguous():
            return None
        flat = one.detach().reshape(-1)
        return _of_array(flat.view(torch.uint8).numpy() if flat.numel() else b"", one.shape)
    if library == "numpy" and hasattr(one, "tobytes") and hasattr(one, "shape"):
        return _of_array(one, one.shape)
    if library == "pandas" and hasattr(one, "to_numpy") and hasattr(one, "head"):
        return repr((one.shape, one.head(64).to_numpy().tolist())).encode()[:LARGEST_BYTES]
    if library == "PIL" and hasattr(one, "getbands"):
        width, height = one.size
        small = one if width * height * 4 <= LARGEST_BYTES else one.resize((64, 64))
        return repr((one.size, one.mode)).encode() + bytes(small.tobytes())
    return None


def _of_array(array: Any, shape: Any) -> bytes:
    size = getattr(array, "nbytes", 0)
    seen = array if size <= LARGEST_BYTES else array.flat[:: max(1, array.size // ELEMENTS)]
    return repr(tuple(shape)).encode() + (seen.tobytes() if size else b"")
