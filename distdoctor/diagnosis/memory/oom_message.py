"""What an exception says about an allocation that failed: how much, of what, and how much there was.

Words of torch 1.7-2.15 (c10/core/impl/alloc_cpu.cpp, c10/cuda/CUDACachingAllocator.cpp), of its backends for other devices, which
keep those of torch 1, numpy and Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from distdoctor.recording.recording import RankEnd

HOST, DEVICE = "host memory", "device memory"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_OURS = re.compile(
    r"(CUDA|HIP|XPU|NPU|MUSA|MLU|HPU|MPS backend) (error: )?out of memory|can't allocate memory|Cannot allocate memory|"
    r"Unable to allocate"
)


# torch/utils/data/_utils/signal_handling.py and the storage's shared-memory code (2.11-2.15)
_SHARED = re.compile(
    r"out of shared memory|unable to (mmap|write|open|resize|allocate) .*shared|/dev/shm|killed by signal: Bus error|"
    r"/torch_\d+.*No space left"
)


def shared_memory_in(words: str) -> str:
    """The line of the exception that says that shared memory could not be allocated; "" when none does."""
    return next((line.strip() for line in reversed(words.splitlines()) if _SHARED.search(line)), "")


# torch/utils/data/dataloader.py and _utils/signal_handling.py (2.11-2.15)
_WORKER_KILLED = re.compile(r"DataLoader worker.*(killed by signal: Killed|exited unexpectedly)")


def lost_its_worker(words: str, end: RankEnd | None) -> bool:
    """Whether the exception says that a DataLoader worker was killed, just when the kernel killed for lack of memory."""
    return bool(end is not None and end.kernel_kills and _WORKER_KILLED.search(words))


@dataclass(frozen=True)
class Request:
    """A request that could not be served. Bytes; 0: not said. `cached`: held by PyTorch's allocator, and not in use; `used`: of
    the device, by this process."""

    of: str
    asked: int = 0
    free: int = 0
    capacity: int = 0
    allocated: int = 0
    cached: int = 0
    used: int = 0

    @property
    def held_by_others(self) -> int:
        """What other processes hold of the device, where the words tell what this one does."""
        return max(0, self.capacity - self.free - self.used) if self.capacity and self.used else 0


def tells_of_an_allocator(words: str) -> bool:
    """Whether the words are an allocator's report. The type of an exception alone says nothing of who has made it."""
    return bool(_OURS.search(words))


def request_of(words: str) -> Request | None:
    """The request that the exception `Type: message` is about; None when it is about something else."""
    kind = words.partition(":")[0].rpartition(".")[2]
    if kind not in ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError") and not _OURS.search(words):
        return None
    if kind == "OutOfMemoryError" or ("out of memory" in words.lower() and "Tried to allocate" in words):
        return Request(
            DEVICE,
            asked=_size(rf"Tried to allocate {_SIZE}", words),
            free=_size(rf"of which {_SIZE} is free|{_SIZE} free", words),
            capacity=_size(rf"total capacity of {_SIZE}|{_SIZE} total capacity", words),
            allocated=(allocated := _size(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated", words)),
            cached=_size(rf"{_SIZE} is reserved by PyTorch but unallocated", words)
            or max(0, _size(rf"{_SIZE} reserved in total by PyTorch", words) - allocated),
            used=_size(rf"this process has {_SIZE} memory in use", words),
        )
    if "error: out of memory" in words:  # of the driver, outside of PyTorch's allocator: it does not say how much
        return Request(DEVICE)
    asked = re.search(r"tried to allocate (\d+) bytes", words)
    if asked:
        return Request(HOST, asked=int(asked[1]))
    return Request(HOST, asked=_size(rf"Unable to allocate {_SIZE}", words))


def _size(pattern: str, words: str) -> int:
    found = re.search(pattern, words)
    number, unit = (one for one in found.groups() if one) if found else ("0", "bytes")
    return int(float(number) * _UNITS[unit])
