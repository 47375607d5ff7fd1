"""The environment of this rank, written once as JSON beside its trace: versions, devices, how it was launched.

Of the environment variables only those on the allow-list are kept: the others may hold secrets.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch

from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.stream import ProbeStream
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.redaction import kept_variables, redacted_arguments


def _nccl_version() -> str | None:
    if not torch.version.cuda or not hasattr(torch._C, "_nccl_version"):
        return None  # a torch without it
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _device_count() -> int:
    """Devices by NVML or the driver's count; 0 without CUDA."""
    return torch.cuda.device_count() if torch.version.cuda else 0


# What is known of a rank's surroundings, each by itself: a driver may fail, a working folder be gone. No device is initialised.
FACTS: dict[str, Callable[[], Any]] = {
    "python": platform.python_version,
    "torch": lambda: torch.__version__,
    "cuda": lambda: torch.version.cuda,
    "nccl": _nccl_version,
    "host": socket.gethostname,
    "pid": os.getpid,
    "executable": lambda: sys.executable,
    "argv": lambda: redacted_arguments(getattr(sys, "orig_argv", sys.argv)),
    "cwd": os.getcwd,
    "cpus": lambda: len(os.sched_getaffinity(0)),
    "threads": torch.get_num_threads,
    "cuda_devices": _device_count,
    "text_hash": lambda: hash("distdoctor"),  # tells whether the ranks go through a set of texts in one order
    "variables": lambda: kept_variables(os.environ),
}


class EnvironmentStream(ProbeStream):
    """Written once. What cannot be asked is left out, and noted as trouble of this stream alone."""

    name = "environment"

    def write(self, path: str) -> None:
        """Write everything that is known to `path`, whole or not at all."""
        found: dict[str, Any] = {"settings": self.rank.settings.fields()}
        for name, ask in FACTS.items():
            try:
                found[name] = ask()
            except Exception as error:
                hand_on(error)
                self.trace.note_trouble(f"{self.name}: {name} is not known: {type(error).__name__}: {error}")
        _write(path, found)


def write(rank: Rank, trace: TraceWriter, path: str) -> None:
    """Write what surrounds this rank to `path`."""
    stream = EnvironmentStream(rank, trace, deep=False)
    stream.guarded(stream.write)(path)


def _write(path: str, found: dict[str, Any]) -> None:
    draft = f"{path}.{os.urandom(8).hex()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(found, file)
    os.replace(draft, path)
