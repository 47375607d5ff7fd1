"""The counters of PyTorch's allocator on this rank's device, where one is in use. Reading them waits for nothing."""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

import torch

from distdoctor.probe.interruptions import hand_on


class OnDevice(NamedTuple):
    """Bytes on one device, and how often its allocator had to give back what it had cached. `device` -1: there is none."""

    allocated: int = 0
    reserved: int = 0
    peak: int = 0
    inactive: int = 0
    capacity: int = 0
    retries: int = 0
    device: int = -1


NOTHING = OnDevice()


class DeviceMemory:
    """Looks at the current CUDA device once CUDA is initialised, and never initialises it."""

    def __init__(self) -> None:
        self._capacity: dict[int, int] = {}

    def now(self) -> OnDevice:
        """The counters as they are."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return NOTHING
        index = torch.cuda.current_device()
        if index not in self._capacity:
            self._capacity[index] = int(torch.cuda.get_device_properties(index).total_memory)
        stats: Any = torch.cuda.memory_stats_as_nested_dict(index)
        try:
            allocated = stats["allocated_bytes"]["all"]
            return OnDevice(
                int(allocated["current"]),
                int(stats["reserved_bytes"]["all"]["current"]),
                int(allocated["peak"]),
                int(stats["inactive_split_bytes"]["all"]["current"]),
                self._capacity[index],
                int(stats.get("num_alloc_retries", 0)),
                index,
            )
        except (KeyError, TypeError) as error:  # another allocator, which keeps no such numbers
            hand_on(error)
            return NOTHING


class Context(NamedTuple):
    """This process on one device. `own`: the one on which it has most; `cached`: bytes that its allocator has reserved there."""

    device: str
    own: bool
    cached: int


def contexts() -> list[Context]:
    """The devices on which this process has a context, once CUDA is initialised; asking makes none.

    `device` is the same word in every process of the machine, whatever CUDA_VISIBLE_DEVICES says.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", lambda index: False)
    found = [index for index in range(torch.cuda.device_count()) if has_context(index)]
    cached = {index: int(torch.cuda.memory_reserved(index)) for index in found}
    own = max(found, key=lambda index: (cached[index], index == torch.cuda.current_device()), default=-1)
    return [Context(_name(index), index == own, cached[index]) for index in found]


def _name(index: int) -> str:
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", "")  # torch >= 2.5
    return f"{socket.gethostname()} {uuid or index}"
