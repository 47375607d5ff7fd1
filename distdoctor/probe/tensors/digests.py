"""Sixty-four bits that stand for all bits of a tensor, computed where the tensor lies, without waiting for a device.

Equal dtype, shape and bits give equal digests, whatever the strides, the alignment or the storage. Anything else gives another
digest: one flipped bit, two swapped elements, a negated tensor, 1 turned into 0.5 (what is left to chance is 1 in 2^64, but for
changes that keep the sum of every row and of every column of the words described below, which no fault does by itself).
Bits, not values: -0.0 is not 0.0, NaNs with different payloads differ, denormals count as they are.

How: the bits are read as 64-bit words, 1,021 to a row. Sums of rows and of columns (modulo 2^64, at the speed of the memory)
stand for the words of a large tensor; what is left over and small tensors stand for themselves. All of that, for many tensors at
once, is mixed with the position by multiplications and shifts, which are not linear, and added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distdoctor.recording.trace.layout import digest_of

# Odd, so that a change that is the same in every word of a row (all exponents plus one) does not vanish modulo 2^64.
WIDTH = 1021
ROW_BYTES = 8 * WIDTH
LARGE_BYTES = (
    4 * ROW_BYTES
)  # below, two sums cost more than mixing the words themselves (measured, torch 2.15 on a CPU)

_FIRST, _SECOND, _THIRD = -7046029254386353131, -4417276706812531889, 2545118226571189097  # odd, their bits look random
_LOW32, _LOW35 = (1 << 32) - 1, (1 << 35) - 1


class Unreadable(Exception):
    """The bits of this tensor cannot be read: it is sparse, quantised, fake, on `meta`, or a stranger's subclass."""


def local(tensor: Tensor) -> Tensor:
    """What of a tensor lies on this rank: the shard of a DTensor, everything else as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def bytes_of(tensor: Tensor) -> int:
    """What a tensor takes: of a sparse one its parts, of which torch tells no sum; 0 where it tells nothing."""
    if tensor.layout is torch.strided:
        return int(tensor.nbytes)
    if tensor.layout is torch.sparse_coo:
        return int(tensor._indices().nbytes + tensor._values().nbytes)
    return int(tensor.values().nbytes) if "sparse" in str(tensor.layout) else 0


def is_readable(tensor: Tensor) -> bool:
    """Whether `bits_of` can read it."""
    inner = local(tensor)
    plain = type(inner) in (Tensor, torch.nn.Parameter, torch.nn.Buffer) or isinstance(inner, torch.nn.Parameter)
    strided = inner.layout is torch.strided and not inner.is_quantized and inner.device.type != "meta"
    return plain and strided and not inner.is_nested and has_memory(inner)


def has_memory(inner: Tensor) -> bool:
    """Whether the storage holds all elements: fully_shard takes it away from what it had gathered, and leaves the shape.

    Reading behind its end ends the process. XLA has no storage that could be asked.
    """
    if not inner.numel() or inner.device.type == "xla":
        return True
    last = inner.storage_offset() + sum(
        (size - 1) * step for size, step in zip(inner.shape, inner.stride(), strict=True)
    )
    return int(last + 1) * inner.element_size() <= inner.untyped_storage().nbytes()


def bits_of(tensor: Tensor) -> Tensor:
    """[bytes] uint8: the bits in the order of the elements, a view where the tensor is contiguous."""
    if not is_readable(tensor):
        raise Unreadable(f"{type(tensor).__name__}, {tensor.layout}, on {tensor.device}")
    inner = local(tensor).detach()
    if inner.is_conj() or inner.is_neg():
        inner = inner.resolve_conj().resolve_neg()
    inner = inner.contiguous()
    # Not view(-1): a tensor of one element may have any stride, which `view(dtype)` refuses.
    return inner.as_strided((inner.numel(),), (1,)).view(torch.uint8)


def kind_of(tensor: Tensor) -> int:
    """64 bits of dtype and shape: an empty tensor and one of another shape differ although they have the same bits."""
    inner = local(tensor)
    return digest_of(f"{inner.dtype}{tuple(inner.shape)}")


class Digester:
    """Digests tensors of known sizes on one device. What it allocates is its own: it keeps no tensor that it is given."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        """`sizes`: bytes of each tensor, in the order in which `digests` gets them."""
        self.sizes = tuple(sizes)
        self.device = device
        self._rows = [size // ROW_BYTES if size >= LARGE_BYTES else 0 for size in sizes]
        self._starts: list[int] = []
        lengths, end = [], 0
        for size, rows in zip(sizes, self._rows, strict=True):
            rest = size - rows * ROW_BYTES
            lengths.append(rows + (WIDTH if rows else 0) + -(-rest // 8))
            self._starts.append(end)
            end += lengths[-1]
        with torch.device(device):  # whatever the host has made the default
            self._words = torch.zeros(end, dtype=torch.int64)
            self._scratch = torch.empty(end, dtype=torch.int64)
            self._mixed = torch.empty(end, dtype=torch.int64)
            self._sums = torch.zeros(end + 1, dtype=torch.int64)
            self._ends = torch.tensor([s + n for s, n in zip(self._starts, lengths, strict=True)], dtype=torch.int64)
            self._begins = torch.tensor(self._starts, dtype=torch.int64)
            self._keys = torch.cat([torch.zeros(0, dtype=torch.int64), *(torch.arange(n) for n in lengths)])
            self._keys.add_(1).mul_(_THIRD)
            self._counts_once = torch.ones(end, dtype=torch.int64)  # but for the sums of columns
        for start, rows in zip(self._starts, self._rows, strict=True):
            if rows:
                self._counts_once[start + rows : start + rows + WIDTH] = 0
        self._bytes = self._words.view(torch.uint8)

    def digests(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """[2, tensors] int64, on the device: digests of the bits alone (see `finished`), and the sums of their words.

        Two tensors of which one has a single flipped bit have sums that differ by a power of two. None counts as no bits.
        """
        with torch.no_grad():
            for number, tensor in enumerate(tensors):
                if tensor is not None:
                    self._take(number, bits_of(tensor))
            return self._mix()

    def _take(self, number: int, flat: Tensor) -> None:
        rows, at = self._rows[number], self._starts[number]
        if flat.numel() != self.sizes[number]:
            raise Unreadable(f"{flat.numel()} bytes where {self.sizes[number]} were")
        if rows:
            if flat.storage_offset() % 8:
                flat = flat.clone()
            words = flat[: rows * ROW_BYTES].view(torch.int64).view(rows, WIDTH)
            torch.sum(words, 1, out=self._words[at : at + rows])
            torch.sum(words, 0, out=self._words[at + rows : at + rows + WIDTH])
            at += rows + WIDTH
            flat = flat[rows * ROW_BYTES :]
        if flat.numel():
            self._bytes[at * 8 : at * 8 + flat.numel()].copy_(flat)

    def _mix(self) -> Tensor:
        """Two rounds: after one, swapping x and -x in the upper half of two words would go unseen half of the time."""
        mixed, scratch = self._mixed, self._scratch
        torch.add(self._words, self._keys, out=mixed)
        mixed.mul_(_FIRST)
        torch.bitwise_right_shift(mixed, 32, out=scratch)
        mixed.bitwise_xor_(scratch.bitwise_and_(_LOW32)).mul_(_SECOND)
        torch.bitwise_right_shift(mixed, 29, out=scratch)
        mixed.bitwise_xor_(scratch.bitwise_and_(_LOW35)).mul_(_THIRD)
        digests = self._segments(mixed)
        return torch.stack([digests, self._segments(torch.mul(self._words, self._counts_once, out=scratch))])

    def _segments(self, words: Tensor) -> Tensor:
        torch.cumsum(words, 0, out=self._sums[1:])
        return self._sums[self._ends] - self._sums[self._begins]


def finished(raw: int, kind: int) -> int:
    """The digest of a tensor from that of its bits and its `kind_of`; never 0, which stands for no tensor."""
    word = (((raw & 0xFFFFFFFFFFFFFFFF) ^ kind) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    return (word ^ (word >> 32)) or 1


def digest(tensor: Tensor) -> int:
    """The digest of one tensor, read at once. For tests and for what happens once."""
    bits = bits_of(tensor)
    raw = Digester([bits.numel()], bits.device).digests([tensor])
    return finished(int(raw[0, 0]), kind_of(tensor))


class Reading:
    """Values that are being computed on a device. `values` may be asked once `ready` says so; that never waits."""

    def __init__(self, size: int, parts: Sequence[tuple[list[int], Tensor]]) -> None:
        """`parts`: which of the `size` values a tensor [rows, values] holds, and that tensor."""
        self._size = size
        self._parts: list[tuple[list[int], Tensor]] = []
        self._events: list[torch.cuda.Event] = []
        for numbers, found in parts:
            if found.device.type == "cuda":
                host = torch.empty(found.shape, dtype=found.dtype, device="cpu", pin_memory=True)
                host.copy_(found, non_blocking=True)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(found.device))
                self._events.append(event)
                found = host
            self._parts.append((numbers, found))

    def ready(self) -> bool:
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]

    def values(self, row: int = 0) -> list[Any]:
        """One value each of this row, 0 where there was nothing to compute."""
        found: list[Any] = [0] * self._size
        for numbers, part in self._parts:
            for number, value in zip(numbers, part[row].tolist(), strict=True):
                found[number] = value
        return found


class Digests:
    """Digests lists of tensors of the same sizes again and again, on whatever devices they lie."""

    def __init__(self) -> None:
        self._digesters: dict[torch.device, Digester] = {}

    def start(self, tensors: Sequence[Tensor | None]) -> tuple[Reading, list[int]]:
        """The raw digests on their way, and the numbers of the tensors that cannot be read."""
        by_device: dict[torch.device, list[int]] = {}
        unreadable = []
        for number, tensor in enumerate(tensors):
            if tensor is None:
                continue
            if is_readable(tensor):
                by_device.setdefault(local(tensor).device, []).append(number)
            else:
                unreadable.append(number)
        parts = []
        for device, numbers in by_device.items():
            chosen = [tensors[number] for number in numbers]
            sizes = tuple(local(tensor).nbytes for tensor in chosen if tensor is not None)
            digester = self._digesters.get(device)
            if digester is None or digester.sizes != sizes:
                digester = self._digesters[device] = Digester(sizes, device)
            parts.append((numbers, digester.digests(chosen)))
        return Reading(len(tensors), parts), unreadable


def norms_of(tensors: Sequence[Tensor | None]) -> Reading:
    """L2 norms on their way. NaN or infinity: the tensor holds one (or its square does not fit into its type)."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor is not None and is_readable(tensor) and local(tensor).is_floating_point():
            inner = local(tensor)
            wide = torch.float64 if inner.dtype is torch.float64 else torch.float32
            groups.setdefault((inner.device, wide), []).append(number)
    parts = []
    with torch.no_grad():
        for (_, wide), numbers in groups.items():
            chosen = [local(tensor).detach() for number in numbers if (tensor := tensors[number]) is not None]
            parts.append((numbers, torch.stack(torch._foreach_norm(chosen, 2.0, dtype=wide)).view(1, -1)))
    return Reading(len(tensors), parts)


_known: dict[tuple[torch.dtype, torch.Size], int] = {}


def kinds_of(tensors: Sequence[Tensor]) -> list[int]:
    """`kind_of` each, worked out once for each dtype and shape. A gradient has those of its parameter."""
    found = []
    for tensor in tensors:
        inner = local(tensor)
        key = (inner.dtype, inner.shape)
        kind = _known.get(key)
        if kind is None:
            kind = kind_of(inner)
            if len(_known) < 10_000:
                _known[key] = kind
        found.append(kind)
    return found


def finished_all(reading: Reading, kinds: Sequence[int]) -> list[int]:
    return [finished(raw, kind) if raw else 0 for raw, kind in zip(reading.values(), kinds, strict=True)]
