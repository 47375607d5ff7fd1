"""Fingerprints of the first sample of a batch, and of all, for data that have no indices. Reads bytes; runs no operation."""

from __future__ import annotations

import ctypes
import zlib
from array import array
from typing import Any

import torch

LEAVES = 4  # of a batch: inputs, targets, and a little more
BYTES = 4096  # of a tensor
PIECE = 512  # bytes of a row of a tensor, from its beginning and from its middle
DEPTH = 4


def fingerprint(batch: Any) -> int | None:
    """32 bits of the first sample of a batch, the same wherever the same sample is; None when nothing of it can be read."""
    digest, read = 0, 0
    for leaf in _leaves(batch, DEPTH):
        raw = _bytes(leaf)
        if raw:
            digest, read = zlib.crc32(raw, digest), read + 1
        if read == LEAVES:
            break
    return digest if read else None


def row_fingerprints(batch: Any) -> array[int] | None:
    """32 bits, none of them 0, of each sample of a batch of tensors of one length; None for any other batch."""
    leaves = [one for one in _leaves(batch, DEPTH) if isinstance(one, torch.Tensor)][:LEAVES]
    if not leaves or not all(one.dim() and len(one) == len(leaves[0]) and _start(one) for one in leaves):
        return None
    pieces = [piece for one in leaves for piece in _pieces(one)]
    found, read, digest_of = array("I"), ctypes.string_at, zlib.crc32
    for row in range(len(leaves[0])):
        digest = 0
        for start, stride, size in pieces:
            digest = digest_of(read(start + row * stride, size), digest)
        found.append(digest or 1)
    return found


def _pieces(leaf: torch.Tensor) -> list[tuple[int, int, int]]:
    """(address in the first row, bytes from row to row, bytes) of what is read of each row of a tensor."""
    start, stride = _start(leaf), leaf.numel() // len(leaf) * leaf.element_size()
    size = min(PIECE, stride)
    return (
        [(start, stride, size)]
        if stride <= PIECE
        else [(start, stride, size), (start + (stride - size) // 2, stride, size)]
    )


def _leaves(value: Any, depth: int) -> Any:
    kind = type(value)
    if depth and isinstance(value, dict):
        for part in list(value.values())[:LEAVES]:
            yield from _leaves(part, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for part in value[:LEAVES]:
            yield from _leaves(part, depth - 1)
    elif kind in (torch.Tensor, str, bytes, int, float):
        yield value


def _bytes(leaf: Any) -> bytes:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf).encode("utf-8", "replace")[:BYTES]
    start = _start(leaf)
    row = leaf.numel() // leaf.shape[0] if start and leaf.dim() else 1
    return ctypes.string_at(start, min(BYTES, row * leaf.element_size())) if start else b""


def _start(leaf: torch.Tensor) -> int:
    """The address of a tensor whose bytes lie on the host in one piece; 0 for any other."""
    if leaf.device.type != "cpu" or leaf.layout is not torch.strided or not leaf.numel() or not leaf.is_contiguous():
        return 0
    return leaf.data_ptr()
