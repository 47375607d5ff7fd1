"""Which indices of a large data set are kept: the same ones on every rank and in every epoch, so that an overlap found is real.

Of every 256 neighbouring indices exactly 256 / m are kept when one in m is (m a power of two up to 256), and which ones looks
random to any sampler. Standard library only, and no loop in Python: this runs inside the ranks (about 20 ns an index).
"""

from __future__ import annotations

import hashlib
import itertools
from array import array

LARGEST = 1 << 16  # one in 65,536 of four thousand million indices is still 65,536


def _shuffled(name: str) -> bytes:
    """The numbers 0-255 in an order that the name decides."""
    weights = hashlib.shake_128(name.encode()).digest(4 * 256)
    ranked = sorted((weights[4 * value : 4 * value + 4], value) for value in range(256))
    return bytes(value for _, value in ranked)


# Tabulation hashing: each of the four bytes of an index goes through a table of its own. Twice, for 16 bits of hash.
_TABLES = tuple(tuple(_shuffled(f"distdoctor indices {half} {byte}") for byte in range(4)) for half in range(2))
_SELECT: dict[int, bytes] = {}


def one_in(share: int, wanted: int) -> int:
    """The smallest power of two m such that one in m of `share` indices is at most `wanted`."""
    m = 1
    while share > wanted * m and m < LARGEST:
        m *= 2
    return m


def kept(indices: array[int], m: int) -> array[int]:
    """Those of the 32-bit `indices` that are kept when one in `m` is, in their order. What m keeps, m / 2 keeps too."""
    if m <= 1 or not indices:
        return indices
    raw = indices.tobytes()
    selected = _hash(raw, 0).translate(_selection(min(m, 256)))
    if m > 256:
        more = _hash(raw, 1).translate(_selection(m // 256))
        both = int.from_bytes(selected, "little") & int.from_bytes(more, "little")
        selected = both.to_bytes(len(indices), "little")
    if m < 8:
        return array("I", itertools.compress(indices, selected))
    found, at = array("I"), selected.find(b"\1")
    while at >= 0:
        found.append(indices[at])
        at = selected.find(b"\1", at + 1)
    return found


def _hash(raw: bytes, half: int) -> bytes:
    """One byte for each 32-bit little-endian word."""
    word = 0
    for byte, table in enumerate(_TABLES[half]):
        word ^= int.from_bytes(raw[byte::4].translate(table), "little")
    return word.to_bytes(len(raw) // 4, "little")


def _selection(m: int) -> bytes:
    """A table that turns a hash byte into 1 where one in m is kept, and 0 elsewhere."""
    table = _SELECT.get(m)
    if table is None:
        table = _SELECT[m] = bytes(int(value % m == 0) for value in range(256))
    return table
