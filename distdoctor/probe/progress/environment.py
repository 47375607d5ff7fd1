"""The environment of this rank, written once as JSON beside its trace: versions, devices, how it was launched.

Of the environment variables only those on the allow-list are kept: the others may hold secrets.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from typing import Any

import torch

from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.redaction import kept_variables, redacted_arguments


def describe(settings: ProbeSettings) -> dict[str, Any]:
    """What the environment stream knows. Nothing here initialises a device."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": _nccl_version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "executable": sys.executable,
        "argv": redacted_arguments(getattr(sys, "orig_argv", sys.argv)),
        "cwd": os.getcwd(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "cuda_devices": _device_count(),
        "settings": settings.fields(),
        "text_hash": hash("distdoctor"),  # tells whether the ranks go through a set of texts in one order
        "variables": kept_variables(os.environ),
    }


def _nccl_version() -> str | None:
    try:
        version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        return ".".join(map(str, version)) if torch.version.cuda else None
    except Exception:
        return None


def _device_count() -> int:
    """Devices by NVML or the driver's count; 0 without CUDA."""
    try:
        return torch.cuda.device_count() if torch.version.cuda else 0
    except Exception:
        return 0


def write(path: str, settings: ProbeSettings) -> None:
    """Write what `describe` says to `path`, whole or not at all."""
    draft = f"{path}.{os.urandom(8).hex()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(describe(settings), file)
    os.replace(draft, path)
