"""Documents that somebody else may have written are taken apart only where what they hold fits into memory: two bytes of JSON, or
one of msgpack, become a value of 64 bytes and more, and a file of 64 MiB would take gigabytes.

Standard library only: this module is imported inside the ranks.
"""

from __future__ import annotations

import json
from typing import Any

MOST_VALUES = 4 << 20  # at most some 320 MiB; the report of 10,240 ranks has a fifth of them
_SEPARATORS = ",:[{"  # each value stands behind one, the outermost aside
_FIXED = {  # of msgpack: first byte -> bytes of a value that says nothing of its length
    **dict.fromkeys((0xCC, 0xD0), 2), **dict.fromkeys((0xCD, 0xD1, 0xDC, 0xDE, 0xD4), 3), 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18,
    **dict.fromkeys((0xCA, 0xCE, 0xD2, 0xDD, 0xDF), 5), **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
}  # fmt: skip
_COUNTED = {  # of msgpack: first byte -> (bytes of the length behind it, bytes between that and the content)
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip


def values_in_json(text: str | bytes) -> int:
    """How many values a document holds at most; what looks like a separator inside its texts counts as one."""
    if isinstance(text, str):
        return 1 + sum(text.count(sign) for sign in _SEPARATORS)
    return 1 + sum(text.count(sign.encode()) for sign in _SEPARATORS)


def parse_json(text: str | bytes) -> Any:
    """What a JSON document holds. ValueError: it is none, is nested too deeply, or holds more than `MOST_VALUES` values."""
    require_few(values_in_json(text))
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def require_few_values(raw: bytes) -> None:
    """ValueError: what is packed by msgpack holds more than `MOST_VALUES` values."""
    count, at, end = 0, 0, len(raw)
    while at < end:
        count += 1
        if count > MOST_VALUES:
            require_few(count)
        first = raw[at]
        if 0xA0 <= first <= 0xBF:
            at += 1 + (first & 31)
        elif first in _COUNTED:
            length, between = _COUNTED[first]
            at += 1 + length + between + int.from_bytes(raw[at + 1 : at + 1 + length], "big")
        else:
            at += _FIXED.get(first, 1)


def require_few(count: int) -> None:
    """ValueError: a document of so many values is not taken apart."""
    if count > MOST_VALUES:
        raise ValueError(f"it holds more than {MOST_VALUES:,} values, the most that are read")
