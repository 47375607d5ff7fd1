"""On which devices a process has a context is asked of the driver, and asking makes none."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import torch

from distdoctor.probe.memory.device_memory import contexts


def test_without_cuda_nothing_is_asked() -> None:
    assert contexts() == []


def test_the_own_device_is_the_one_with_most_on_it_whatever_is_current() -> None:
    cached = {0: 0, 2: 1 << 20}
    cuda = {
        "is_initialized": lambda: True,
        "device_count": lambda: 3,
        "current_device": lambda: 0,
        "memory_reserved": cached.__getitem__,
        "get_device_properties": lambda index: SimpleNamespace(uuid=f"GPU-{index}"),
    }
    with (
        mock.patch.multiple(torch.cuda, **cuda),
        mock.patch.object(torch._C, "_cuda_hasPrimaryContext", cached.__contains__, create=True),
    ):
        found = contexts()

    assert [(one.device.split()[-1], one.own, one.cached) for one in found] == [
        ("GPU-0", False, 0),
        ("GPU-2", True, 1 << 20),
    ]
