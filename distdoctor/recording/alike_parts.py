"""What hosts of one job have alike: texts, settings, and the digests of weights that all of them hold.

A bundle that lies in a file has it all. Between hosts these pieces travel under their digests: who finds one there already does
not send it, and who reads the bundles of all reads it once.
"""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec

SMALLEST = 128  # bytes; a digest and the question for it cost some, too
DIGEST_BYTES = 10
LARGEST_BYTES = 64 << 20  # unpacked; beyond that somebody means harm
MEMORY = 64 << 20  # bytes that unpacking may take beside what it unpacks; our filters take 4 MiB
# A dictionary beyond that takes memory, and the bundle hardly shrinks. What is left of numbers is noise, byte by byte: no
# context of the byte before it helps (lc, pb), and finding that out for each context takes more bytes than there are.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 3, "lc": 0, "pb": 0}]
# What is of one rank or host alone, of its environment and of the variables in it.
_OF_A_RANK = frozenset({"pid", "host", "cwd", "text_hash", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"})
_OF_A_RANK |= {"TORCHELASTIC_ERROR_FILE"}
_VARIABLES = "variables"
Pieces = MutableMapping[bytes, bytes]  # by their digests


def put_apart(value: Any, pieces: Pieces) -> bytes:
    """Add a value to the pieces; its digest."""
    data = msgspec.msgpack.encode(value)
    piece = lzma.compress(data, check=lzma.CHECK_NONE, filters=FILTERS)
    digest = hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
    pieces[digest] = piece
    return digest


def brought_back(digest: bytes, piece: Callable[[bytes], bytes], kind: Any) -> Any:
    """The value that was put apart.

    ValueError, LZMAError, EOFError, MsgspecError: it is not there, or damaged.
    """
    unpacker = lzma.LZMADecompressor(memlimit=MEMORY)
    data = unpacker.decompress(piece(digest), LARGEST_BYTES)
    if not unpacker.eof or hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest() != digest:
        raise ValueError("what hosts have alike is damaged")
    return msgspec.msgpack.decode(data, type=kind)


def columns_apart(columns: Sequence[bytes], places: range, pieces: Pieces) -> tuple[list[bytes], dict[int, bytes]]:
    """The columns without the large ones at these places, and the digests of those."""
    cut = {at: put_apart(columns[at], pieces) for at in places if len(columns[at]) >= SMALLEST}
    return [b"" if at in cut else column for at, column in enumerate(columns)], cut


def settings_of(environment: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of an environment is its rank's alone, and what others have as well."""
    own = {name: value for name, value in environment.items() if name in _OF_A_RANK}
    alike = {name: value for name, value in environment.items() if name not in _OF_A_RANK}
    variables = environment.get(_VARIABLES)
    if isinstance(variables, dict):
        own[_VARIABLES] = {name: value for name, value in variables.items() if name in _OF_A_RANK}
        alike[_VARIABLES] = {name: value for name, value in variables.items() if name not in _OF_A_RANK}
    return own, alike


def with_settings(own: Mapping[str, Any], alike: Mapping[str, Any]) -> dict[str, Any]:
    """The whole environment."""
    whole = {**alike, **own}
    if isinstance(own.get(_VARIABLES), dict) and isinstance(alike.get(_VARIABLES), dict):
        whole[_VARIABLES] = {**alike[_VARIABLES], **own[_VARIABLES]}
    return whole
