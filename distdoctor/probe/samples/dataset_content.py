"""What a data set holds, as a digest that two ranks can compare: do index 7 here and index 7 there mean the same sample?

Nothing of the data set is called but `len`: no sample is read, no random number drawn, no property evaluated. Only plain
attributes are looked at (numbers, texts, lists, arrays, tensors in memory, data sets within), at a few places of each, once per
data set. Unequal digests mean that the ranks may hold different data; equal ones with `pieces` > 0 that they hold the same.
Lists and tensors that are short enough are read whole for a second digest, that of their values in any order: where only it is
equal the ranks hold the same things, and call them by different indices.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import marshal
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.variables import attributes_of

PLACES = 16  # of a list, from the first to the last
ELEMENTS = 64  # of a tensor
CHUNKS, CHUNK_BYTES = 8, 64  # of an array
ATTRIBUTES = 48
DEPTH = 4
BUDGET = 2_000  # values looked at per data set: about a millisecond
MANY = 10_000  # objects in a container, before it is weighed
LONGEST_BAG = 16_384  # values of a list that are read whole, 0.3 microseconds each, 2 of a row of several values
BAG_BYTES = 4 << 20  # of all rows


@dataclass(frozen=True)
class Content:
    """Class, length (-1: unknown) and digest of a data set. `pieces`: how many values that look like data are in the digest.
    `bag`: the digest that does not know the order of lists, "" where no list was read whole. `objects`: bytes of the Python
    objects in its largest list or dictionary, about, and the attribute that holds it; "" where there are few."""

    name: str
    length: int
    digest: str
    pieces: int
    bag: str = ""
    objects: str = ""

    @property
    def text(self) -> str:
        return f"{self.name}\0{self.length}\0{self.digest}\0{self.pieces}"


def content_of(dataset: Any, iterable: bool = False) -> Content:
    """The description of a data set. What cannot be read is left out."""
    length = -1 if iterable else _length(dataset)
    look = _ContentScan()
    look.at(dataset, DEPTH, inside=True)
    bag = look.bag.hexdigest() if look.bags else ""
    return Content(type(dataset).__name__, length, look.digest.hexdigest(), look.pieces, bag, look.objects)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception as error:
        hand_on(error)
        return -1


class _ContentScan:
    def __init__(self) -> None:
        self.digest, self.bag = (hashlib.blake2b(digest_size=8) for _ in range(2))
        self.bags = 0  # lists that the second digest knows by their values alone
        self.bagged = False  # such a list is being looked at
        self.within = 0  # so many containers
        self.listed = 0  # so many lists, of which the elements may be samples
        self.pieces = 0
        self.left = BUDGET
        self.attribute = self.holder = ""  # of the data set: being looked at; with most bytes of Python objects
        self.most = 0

    @property
    def objects(self) -> str:
        return f"{self.most} {self.holder}" if self.most else ""

    def fold(self, *words: object) -> None:
        self.update("\0".join(map(str, words)).encode("utf-8", "replace") + b"\1")

    def update(self, raw: bytes) -> None:
        self.digest.update(raw)
        if not self.bagged:
            self.bag.update(raw)

    def at(self, value: Any, depth: int, *, inside: bool = False) -> None:
        """Fold in one value. `inside`: its attributes belong to the data set."""
        self.left -= 1
        if self.left < 0:
            return
        kind = type(value)
        if value is None or kind in (bool, int, float, str, bytes):
            self.fold(kind.__name__, value)
            self.pieces += kind is str and os.sep in value  # a path: where the data come from
        elif kind in (list, tuple):
            self._places(value, depth)
        elif kind is range:
            self.fold("range", value)
            self.pieces += 1
        elif kind is dict:
            self._mapping(value, depth)
        elif kind in (torch.Tensor, torch.nn.Parameter):
            self._tensor(value)
        elif kind.__name__ == "ndarray":
            self._array(value)
        elif isinstance(value, os.PathLike) and kind.__module__ == "pathlib":
            self.fold("path", value)
            self.pieces += 1
        elif depth > 0 and (inside or _is_data(value)):
            self._attributes(value, depth)
        else:
            self.fold(kind.__name__)

    def _places(self, values: Any, depth: int) -> None:
        """The length and a few elements of a list or tuple."""
        self.fold("list", len(values))
        if depth <= 0:
            return
        self._weigh(values, values)
        outer, bag = self.bagged, None if self.within or type(values) is not list else _bag(values)
        self._put_in_bag(bag)
        self.bagged = outer or bag is not None
        self.listed += type(values) is list
        for place in _places(len(values), PLACES):
            self._element(values[place], depth - 1)
            if bag is not None and type(values[place]).__module__ != "builtins":
                self.update(_row(values[place]))  # an object: its attributes are in the bag
        self.bagged = outer
        self.listed -= type(values) is list

    def _put_in_bag(self, bag: int | None) -> None:
        """Fold the values of a list, in any order, into the second digest alone."""
        if bag is not None:
            self.bag.update(bag.to_bytes(8, "little"))
            self.bags += 1

    def _fits(self, rows: int, nbytes: int) -> bool:
        """Whether the rows of a tensor or an array may be samples, and are few enough to be read."""
        return not self.bagged and not self.listed and 1 < rows <= LONGEST_BAG and nbytes <= BAG_BYTES

    def _mapping(self, values: dict[Any, Any], depth: int) -> None:
        self.fold("dict", len(values))
        if depth <= 0:
            return
        self._weigh(values, list(itertools.islice(values.values(), PLACES)))
        for number, (key, value) in enumerate(values.items()):
            if number >= PLACES:
                break
            if type(key) in (str, int):
                self.fold(key)
                self._element(value, depth - 1)

    def _weigh(self, container: Any, values: Any) -> None:
        """How many bytes the Python objects in a large container take, judged by a few of them."""
        if len(container) < MANY:
            return
        some = [values[place] for place in _places(len(values), PLACES)]
        total = len(container) * sum(map(_size, some)) // len(some)
        if total > self.most:
            self.most, self.holder = total, self.attribute

    def _element(self, value: Any, depth: int) -> None:
        """Fold in what a container holds; numbers and texts there are data."""
        self.within += 1
        self.at(value, depth)
        self.within -= 1
        if type(value) in (int, float, str, bytes):
            self.pieces += 1

    def _attributes(self, value: Any, depth: int) -> None:
        """The plain attributes of a data set, by name. An object without `__dict__` has none."""
        self.fold(type(value).__module__, type(value).__qualname__)
        scope = getattr(value, "__dict__", None)
        if type(scope) is not dict:
            return
        for name in sorted(key for key in scope if isinstance(key, str))[:ATTRIBUTES]:
            self.fold(name)
            self.attribute = name
            self.at(scope.get(name), depth - 1)

    def _tensor(self, value: torch.Tensor) -> None:
        """Shape and a few elements of a tensor in host memory, read without running an operation."""
        self.fold("tensor", tuple(value.shape), value.dtype)
        if value.device.type != "cpu" or value.layout is not torch.strided or value.is_quantized or not value.numel():
            return
        start, size = value.data_ptr(), value.element_size()
        shape, strides = value.shape, value.stride()
        rows, total = shape[0] if shape else 0, value.numel() * size
        whole = start and value.is_contiguous() and self._fits(rows, total)
        self._put_in_bag(_sum(_cut(ctypes.string_at(start, total), rows)) if whole else None)
        outer, self.bagged = self.bagged, self.bagged or bool(whole)
        for place in _places(value.numel(), ELEMENTS) if start else ():
            at = 0
            for length, stride in zip(reversed(shape), reversed(strides), strict=True):
                place, index = divmod(place, length)
                at += index * stride
            self.update(ctypes.string_at(start + at * size, size))
            self.pieces += 1
        self.bagged = outer

    def _array(self, value: Any) -> None:
        """Shape and a few bytes of a numpy array, unless it lies in a file: reading it could wait for a disk."""
        self.fold("array", value.shape, value.dtype)
        below = value
        while below is not None and type(below).__name__ == "ndarray":
            below = below.base
        if below is not None or value.dtype.hasobject or not value.flags.c_contiguous or not value.nbytes:
            return
        raw = memoryview(value).cast("B")
        rows = len(value) if value.ndim else 0
        whole = self._fits(rows, len(raw))
        self._put_in_bag(_sum(_cut(raw, rows)) if whole else None)
        outer, self.bagged = self.bagged, self.bagged or whole
        for place in _places(max(1, len(raw) // CHUNK_BYTES), CHUNKS):
            self.update(bytes(raw[place * CHUNK_BYTES : (place + 1) * CHUNK_BYTES]))
            self.pieces += 1
        self.bagged = outer


def _bag(values: list[Any]) -> int | None:
    """64 bits of the values of a list in any order; None for one that is too long, or holds what has no plain text."""
    if not 1 < len(values) <= LONGEST_BAG:
        return None
    if type(values[0]) in (str, int):
        return (
            _sum(str(one).encode("utf-8", "replace") for one in values) if {*map(type, values)} <= {str, int} else None
        )
    some = [values[place] for place in _places(len(values), PLACES)]
    try:
        if not all(_is_row(one, DEPTH) for one in some):
            return None
        if len(values) * sum(len(_row(one)) for one in some) > BAG_BYTES * len(some):
            return None
        return _sum(map(_row, values))
    except (ValueError, RuntimeError) as error:
        hand_on(error)
        return None  # a row of another kind among them, or somebody changes them


def _row(value: Any) -> bytes:
    """The bytes of a row of plain values, or of an object's attributes. Format 2 knows no references and no interned texts."""
    return marshal.dumps(value if type(value) in (dict, list, tuple) else attributes_of(value), 2)


def _is_row(value: Any, depth: int) -> bool:
    """Whether plain values are all that a row holds: arrays may lie in a file."""
    kind = type(value)
    if kind in (str, int, float, bool, bytes, type(None)):
        return depth < DEPTH
    if kind in (list, tuple):
        return depth > 0 and all(_is_row(one, depth - 1) for one in value[:PLACES])
    held = value if kind is dict else attributes_of(value) if depth == DEPTH else {}
    return depth > 0 and bool(held) and all(_is_row(one, depth - 1) for one in list(held.values())[:PLACES])


def _cut(raw: bytes | memoryview, rows: int) -> Iterator[bytes | memoryview]:
    size = len(raw) // rows
    return (raw[place * size : (place + 1) * size] for place in range(rows))


def _sum(rows: Iterable[bytes | memoryview]) -> int:
    """64 bits that do not depend on the order of the rows."""
    return sum(zlib.crc32(raw) << 32 | zlib.adler32(raw) for raw in rows) & 0xFFFFFFFFFFFFFFFF


def _size(value: Any) -> int:
    """Bytes of a plain Python object, and of those directly in it; 0 for arrays and for what is somebody's own."""
    kind = type(value)
    if kind in (str, bytes, int, float):
        return sys.getsizeof(value)
    if kind in (tuple, list):
        return sys.getsizeof(value) + sum(map(_size, value[:PLACES]))
    return sys.getsizeof(value) + sum(map(_size, list(value.values())[:PLACES])) if kind is dict else 0


def _is_data(value: Any) -> bool:
    """Data sets within data sets (ConcatDataset, Subset, wrappers)."""
    return isinstance(value, torch.utils.data.Dataset)


def _places(length: int, wanted: int) -> list[int]:
    """At most `wanted` places of a sequence, evenly from the first to the last."""
    if length <= wanted:
        return list(range(length))
    return [round(place * (length - 1) / (wanted - 1)) for place in range(wanted)]
