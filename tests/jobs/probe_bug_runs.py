"""A training in ranks that are forked, with a bug in the probe or without a probe, and what became of it.

The process that forks has imported torch and whatever the trainings need; the ranks end as a program ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distdoctor.recording.trace.layout import STREAMS
from distdoctor.recording.trace.probe_settings import ProbeSettings
from jobs.probe_bug_trainings import DEEP, ENDS, NUMBERED, TRAININGS, VARIABLES
from jobs.probe_bugs import PACKAGE, SIGNAL, Bug, Finder, Loader, told

LIMIT_SECONDS = 60.0
PATIENT_SECONDS = 900.0  # before a training is said to have no end: on a machine that others fill, a minute is not long
_NUMBERS = re.compile(
    r"\b[0-9a-fx]*\d[0-9a-fx]*\b"
)  # times, addresses and process ids, of which no two runs have the same
# A traceback's frames of the benchmark: a bug is tried from other lines of it than the training without one.
_FRAMES = re.compile(r'^(?:\[rank\d+\]:)? +File "[^"]*/probe_bugs\.py".*\n(?:(?:\[rank\d+\]:)? {4,}.*\n)*', re.M)
PREEMPTED = 42  # the exit code of a program that its handler's exception ends
PROBE = Path(__file__).parents[2] / "distdoctor" / "probe"
PIPELINES = ("torch.distributed.pipelining", "torch.distributed.device_mesh")
IMPORTED = {
    "messages": PIPELINES,
    "older_torch": PIPELINES,
    "compiled": (
        "torch._dynamo.backends.registry",
        "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    ),
    "sharded": (
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "torch.distributed.optim",
        "torch.distributed.tensor.parallel",
    ),
    "data": ("torchdata.stateful_dataloader",),
    "checkpoints": ("safetensors.torch",),
    "frameworks": ("accelerate", "datasets"),
}


@dataclass
class Outcome:
    """What became of a training. One entry a rank, but for the seconds."""

    digests: list[str] = field(default_factory=list)
    exits: list[int | None] = field(default_factory=list)
    errors: list[list[str]] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    interrupted: list[bool] = field(default_factory=list)
    told: bool = False
    named: frozenset[str] = frozenset()  # functions whose bugs the recording names
    seconds: float = 0.0


def prepare(trainings: Iterable[str]) -> None:
    """Import what takes long, and plant the bug into the source of every module of the probe."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # as every optimizer and DDP would in each rank, for more than a second
    for training in trainings:
        for name in IMPORTED.get(training, ()):
            importlib.import_module(name)
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:  # by `import torch`, see probe/seam.py
        del sys.modules[name]
    for path in PROBE.rglob("*.py"):
        Loader(module_name(path), str(path)).get_code(module_name(path))
    gc.collect()
    gc.freeze()


def module_name(path: Path) -> str:
    """Of a file of the probe."""
    return ".".join((PACKAGE, *path.relative_to(PROBE).with_suffix("").parts)).removesuffix(".__init__")


class Preempted(TimeoutError, ValueError, RuntimeError, TypeError, KeyError, IndexError, OverflowError):
    """What the program's own handler raises. Whoever expects one of these from a call of its own must not take it for that."""


def preempted(*_: Any) -> None:
    raise Preempted


def be_rank(training: str, rank: int, folder: str, bug: Bug | None) -> None:
    """One rank, in a process of its own. It returns, or raises, as a program does."""
    body, world_size = TRAININGS[training]
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(f"{folder}/{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), **VARIABLES.get(training, {}))
    multiprocessing.set_start_method(None, force=True)
    if training == "no_room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
    if bug is not None:
        atexit.register(lambda: Path(f"{folder}/calls-{rank}").write_text(json.dumps(bug.calls)))
        Loader.bug = bug
        sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
        os.environ["DISTDOCTOR_PROBE"] = f"{folder}/run/probe.json"
        del os.environ["DISTDOCTOR"]
        start = importlib.import_module(f"{PACKAGE}.seam").autoload
        if training == "second":  # a process that has the rank's variables, and is none
            helper = os.fork()
            start() if not helper else os.waitpid(helper, 0)
            if not helper:
                os._exit(0)
        start()
    if bug is not None and bug.kind == "interrupt":
        signal.signal(SIGNAL, preempted)
        bug.armed = True
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
        digest = body(rank, world_size, f"{folder}/{rank}")
        Path(f"{folder}/digest-{rank}").write_text(digest)
        dist.destroy_process_group()
    except Preempted:
        sys.exit(PREEMPTED)
    finally:
        interrupted = bug is not None and bug.kind == "interrupt" and not bug.armed
        if bug is not None:
            bug.armed = False
        if interrupted:
            Path(f"{folder}/interrupted-{rank}").touch()
    if training in ENDS:
        ENDS[training]()


def fork_ranks(training: str, folder: str, bug: Bug | None) -> list[int] | None:
    """The ids of the processes; None in a rank, which is over."""
    run = Path(folder, "run")
    run.mkdir()
    deep = frozenset({"gradients", "memory"}) if training in DEEP else frozenset()
    ProbeSettings(streams=STREAMS, deep=deep, attempt=0 if training in NUMBERED else None).write(run)
    pids = []
    for rank in range(TRAININGS[training][1]):
        Path(folder, str(rank)).mkdir()
        pid = os.fork()
        if not pid:
            be_rank(training, rank, folder, bug)
            return None
        pids.append(pid)
    return pids


def awaited(pids: Sequence[int], limit_seconds: float) -> list[int | None]:
    """Their exit codes; None for those that did not end in time, which are killed."""
    exits: dict[int, int | None] = {}
    deadline = time.monotonic() + limit_seconds
    while len(exits) < len(pids):
        for pid in set(pids) - exits.keys():
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                exits[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                exits[pid] = None
        time.sleep(0.005)
    return [exits[pid] for pid in pids]


def read(folder: str, exits: list[int | None]) -> Outcome:
    found = Outcome(exits=exits)
    for rank in range(len(exits)):
        digest, calls, errors = (Path(folder, f"{name}-{rank}") for name in ("digest", "calls", "err"))
        found.interrupted.append(Path(folder, f"interrupted-{rank}").exists())
        found.digests.append(digest.read_text() if digest.exists() else "")
        text = _FRAMES.sub("", errors.read_text(errors="replace").replace(folder, ""))
        found.errors.append(_NUMBERS.sub("0", text).splitlines())
        for name, count in json.loads(calls.read_text() if calls.exists() else "{}").items():
            found.calls[name] = max(found.calls[name], count)
    return found


def outcome(training: str, bug: Bug | None, limit_seconds: float = LIMIT_SECONDS) -> Outcome | None:
    """None in a rank, which is over."""
    folder, began = tempfile.mkdtemp(prefix="probe-bugs-"), time.monotonic()
    pids = fork_ranks(training, folder, bug)
    if pids is None:
        return None
    found = read(folder, awaited(pids, limit_seconds))
    found.told, found.named = told(f"{folder}/run") if bug is not None else (True, frozenset())
    found.seconds = time.monotonic() - began
    shutil.rmtree(folder, ignore_errors=True)
    return found


def difference(found: Outcome, plain: Outcome, sound: Outcome) -> str:
    """What the training would have noticed of the bug, "" for nothing. `plain` had no probe, `sound` one without a bug."""
    if None in found.exits:
        return "it did not end"
    if any(found.interrupted):
        lost = [rank for rank, hit in enumerate(found.interrupted) if hit and found.exits[rank] != PREEMPTED]
        return f"the handler's exception was lost on ranks {lost}" if lost else ""
    if found.exits != plain.exits:
        last = next((lines[-1] for lines in found.errors if lines), "")
        return f"it ended with {found.exits}, not with {plain.exits}: {last}"
    if found.digests != plain.digests:
        return "another result"
    for lines, usual in zip(found.errors, sound.errors, strict=True):
        more = Counter(lines) - Counter(usual)
        if more.total() > 1:
            return f"{more.total()} more lines on standard error: {' | '.join(list(more)[:4])}"
    return ""
