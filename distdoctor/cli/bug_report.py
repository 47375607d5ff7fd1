"""What a bug report needs to know of a machine, in two seconds: what may hang is asked in processes of its own, not waited for.

Nothing here imports torch: its version lies in its metadata, and everything that may touch a driver is said by a child.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import IO, Any

import psutil

from distdoctor.attach.permission import may_trace, yama_scope
from distdoctor.launch.preflight.machine import shared_memory
from distdoctor.recording.cores import cores
from distdoctor.recording.trace.redaction import kept_variables

Facts = dict[str, Any]
LIBRARIES = (
    "torchvision", "torchaudio", "numpy", "triton", "accelerate", "transformers", "datasets", "lightning", "pytorch-lightning",
    "deepspeed", "torchtitan", "torchao", "torchdata", "torchcomms", "timm", "composer", "mosaicml-streaming", "webdataset",
    "megatron-core", "transformer-engine", "flash-attn", "xformers", "bitsandbytes", "apex", "horovod", "mpi4py", "ray",
    "py-spy", "psutil", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
)  # fmt: skip
_LIMITS = ("NOFILE", "NPROC", "MEMLOCK", "STACK", "CORE", "AS")
# torch's compiled half alone answers in a third of the time that `import torch` takes. Where a version of it does not come up so,
# a fresh interpreter imports the whole.
_ASK_TORCH = """
import ctypes, json, os, sys, types
from importlib import util
from pathlib import Path

def compiled():
    folder = Path(util.find_spec("torch").origin).parent
    ctypes.CDLL(str(folder / "lib" / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
    for name in ("torch", "torch.distributed"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["torch"].__path__ = [str(folder)]
    import torch._C
    if hasattr(torch._C, "_c10d_init"):
        torch._C._c10d_init()
    return torch._C

def told(c):
    groups = dir(getattr(c, "_distributed_c10d", None))
    found = {"backends": [name.lower() for name in ("Gloo", "NCCL", "MPI", "UCC") if f"ProcessGroup{name}" in groups]}
    found["devices"] = c._cuda_getDeviceCount() if hasattr(c, "_cuda_getDeviceCount") else 0
    found["threads"] = c.get_num_threads()
    found["cudnn"] = c._cudnn.getVersionInt() if hasattr(c, "_cudnn") else None
    if hasattr(c, "_nccl_version"):
        version = c._nccl_version()
        found["nccl"] = ".".join(str(version >> bits & 65535) for bits in (32, 16, 0))
    return json.dumps(found)

if "whole" in sys.argv:
    import torch, torch.distributed
    print(told(torch._C))
else:
    try:
        print(told(compiled()))
    except Exception:
        os.execv(sys.executable, [*sys.orig_argv, "whole"])
"""
_ASK_GPUS = "--query-gpu=name,memory.total,driver_version,compute_cap,pci.bus_id"


@dataclass
class _Question:
    """Something that is asked in a process of its own, because it may never answer."""

    name: str
    words: list[str]
    answer: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    process: subprocess.Popen[bytes] | None = None

    def ask(self) -> None:
        with contextlib.suppress(OSError):
            self.process = subprocess.Popen(
                self.words,
                stdout=self.answer,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def hear(self, until: float) -> str | None:
        """What it said; None where it cannot, or did not come back in time. A process that hangs in a driver dies when the driver
        lets it: it is not waited for."""
        if self.process is None:
            return None
        while self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        if self.process.returncode is None:
            self.process.kill()
            return None
        self.answer.seek(0)
        return self.answer.read(1 << 20).decode("utf-8", "replace") if self.process.returncode == 0 else ""

    @property
    def is_late(self) -> bool:
        """Whether it was asked and has not come back."""
        return self.process is not None and self.process.returncode is None


def facts(seconds: float) -> Facts:
    """All of it after at most so many seconds; `not_told` names what did not answer in that time."""
    until = time.monotonic() + seconds
    questions = {one.name: one for one in _questions()}
    for one in questions.values():
        one.ask()
    here = _machine()
    said = {name: one.hear(until) for name, one in questions.items()}
    late = [name for name, one in questions.items() if one.is_late]
    return {
        "distdoctor": metadata.version("distdoctor"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **_torch(said["torch"]),
        "driver": _first_line("/proc/driver/nvidia/version") or _first_line("/sys/module/amdgpu/version"),
        "gpus": _gpus(said.get("gpus")),
        "gpu_links": _lines(said.get("gpu links")),
        **here,
        "not_told": [f"{name} (no answer within {seconds:g} s)" for name in late],
    }


def _questions() -> Iterable[_Question]:
    yield _Question("torch", [sys.executable, "-P", "-c", _ASK_TORCH])
    program = shutil.which("nvidia-smi")
    if program is not None:
        yield _Question("gpus", [program, _ASK_GPUS, "--format=csv,noheader"])
        yield _Question("gpu links", [program, "topo", "-m"])


def _torch(said: str | None) -> Facts:
    """What lies in torch's files, and what its child said of devices."""
    told: Facts = {}
    with contextlib.suppress(ValueError):
        told = json.loads(said) if said else {}
    built = _built()
    bundled = version_of("nvidia-nccl-cu13") or version_of("nvidia-nccl-cu12")
    return {
        "torch": version_of("torch"),
        "torch_git": built.get("git_version"),
        "cuda": built.get("cuda"),
        "hip": built.get("hip"),
        "cudnn": told.get("cudnn"),
        "nccl": told.get("nccl") or bundled,
        "backends": told.get("backends"),
        "devices": told.get("devices"),
        "torch_threads": told.get("threads"),
    }


def _built() -> dict[str, str]:
    """`cuda`, `hip` and `git_version` as torch/version.py has them, without running it."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    with contextlib.suppress(OSError):
        source = (Path(spec.origin).parent / "version.py").read_text("utf-8", "replace")
        return dict(re.findall(r"^(\w+)(?:\s*:[^=\n]+)?\s*=\s*['\"]([^'\"]*)['\"]", source, re.MULTILINE))
    return {}


def version_of(distribution: str) -> str | None:
    """The version of an installed package, None without it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _gpus(said: str | None) -> list[Facts]:
    names = ("name", "memory", "driver", "compute_capability", "bus")
    rows = [line.split(", ") for line in _lines(said)]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _lines(said: str | None) -> list[str]:
    return [line.rstrip() for line in (said or "").splitlines() if line.strip()][:200]


def _machine() -> Facts:
    """What the kernel says, which does not hang."""
    size, free = shared_memory()
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cores_allowed": cores(),
        "cpu_model": _cpu_model(),
        "memory_gib": _gib(psutil.virtual_memory().total),
        "memory_available_gib": _gib(psutil.virtual_memory().available),
        "shm_gib": _gib(size),
        "shm_free_gib": _gib(free),
        "cgroup": _cgroup(),
        "limits": {name.lower(): _limit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS},
        "ptrace": {"yama_scope": yama_scope(), "cap_sys_ptrace": may_trace()},
        "clocks": _clocks(),
        "nics": _nics(),
        "infiniband": _infiniband(),
        "container": _container(),
        "scheduler": _scheduler(),
        "variables": kept_variables(os.environ),
        "libraries": {name: version for name in LIBRARIES if (version := version_of(name)) is not None},
    }


def _first_line(path: str | Path) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline(500).strip() or None
    except OSError:
        return None


def _gib(size: int | None) -> float | None:
    return None if size is None else round(size / 2**30, 2)


def _cpu_model() -> str | None:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), None)
    return None


def _cgroup() -> Facts:
    """The limits of our own control group; of version 1 those of the whole container."""
    root = Path("/sys/fs/cgroup")
    own = next((line[3:] for line in _lines(_text("/proc/self/cgroup")) if line.startswith("0::")), "/")
    names = {
        "cpu.max": ("cpu.max", "cpu/cpu.cfs_quota_us"),
        "memory.max": ("memory.max", "memory/memory.limit_in_bytes"),
        "memory.high": ("memory.high",),
        "pids.max": ("pids.max", "pids/pids.max"),
        "cpuset": ("cpuset.cpus.effective", "cpuset/cpuset.cpus"),
    }
    places = [root / own.lstrip("/"), root]
    return {
        name: next((said for place in places for one in files if (said := _first_line(place / one))), None)
        for name, files in names.items()
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _limit(number: int) -> int | str:
    soft, _ = resource.getrlimit(number)
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def _clocks() -> Facts:
    """Which clock the kernel uses, and whether something keeps it right: adjtimex(2) returns 5 where nothing does."""
    state: int | None = None
    with contextlib.suppress(OSError, AttributeError):
        asked = ctypes.create_string_buffer(512)  # larger than any struct timex; zeros: only ask
        state = ctypes.CDLL(None).adjtimex(asked)
    source = _first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return {
        "source": source,
        "synchronised": None if state is None or state < 0 else state != 5,
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _nics() -> list[Facts]:
    """The network interfaces, without their addresses."""
    families = {
        name: sorted({"ipv4" if one.family == socket.AF_INET else "ipv6" for one in found if one.family in _IP})
        for name, found in psutil.net_if_addrs().items()
    }
    return [_nic(path, families.get(path.name, [])) for path in _entries("/sys/class/net")]


_IP = (socket.AF_INET, socket.AF_INET6)


def _nic(path: Path, families: list[str]) -> Facts:
    speed = _first_line(path / "speed")
    driver = path / "device/driver"
    return {
        "name": path.name,
        "state": _first_line(path / "operstate"),
        "mtu": _first_line(path / "mtu"),
        "mbit_per_s": speed if speed and not speed.startswith("-") else None,
        "driver": driver.resolve().name if driver.exists() else None,
        "addresses": families,
    }


def _infiniband() -> list[Facts]:
    return [
        {
            "name": port.parent.parent.name,
            "port": port.name,
            "state": _first_line(port / "state"),
            "rate": _first_line(port / "rate"),
        }
        for device in _entries("/sys/class/infiniband")
        for port in _entries(device / "ports")
    ]


def _entries(folder: str | Path) -> list[Path]:
    try:
        return sorted(Path(folder).iterdir())[:64]
    except OSError:
        return []


def _container() -> str | None:
    """What we run in, as far as it shows itself."""
    signs: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("kubernetes", lambda: "KUBERNETES_SERVICE_HOST" in os.environ),
        ("apptainer", lambda: bool({"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"} & os.environ.keys())),
        ("docker", lambda: os.path.exists("/.dockerenv")),
        ("podman", lambda: os.path.exists("/run/.containerenv")),
        (
            "a container",
            lambda: any(word in _text("/proc/1/cgroup") for word in ("docker", "kubepods", "lxc", "containerd")),
        ),
    )
    return next((name for name, shows in signs if shows()), None)


def _scheduler() -> str | None:
    """Who started this shell, where it is a batch system."""
    signs = {
        "SLURM": "SLURM_JOB_ID", "PBS": "PBS_JOBID", "LSF": "LSB_JOBID", "SGE": "JOB_ID", "Flux": "FLUX_JOB_ID",
        "Kubernetes": "KUBERNETES_SERVICE_HOST", "Ray": "RAY_JOB_ID",
    }  # fmt: skip
    return next((name for name, variable in signs.items() if variable in os.environ), None)
