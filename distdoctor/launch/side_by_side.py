"""Train one reference workload several ways, one after the other, and keep what each of them left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from distdoctor.recording.open import open_run
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.probe_settings import ProbeSettings

STREAMS = frozenset({"collectives", "progress", "environment"})
"""What the table needs; digests of gradients are not the strategy's cost."""


@dataclass(frozen=True)
class Trained:
    """What came of one training. `failed` is the reason in one line, "" when it went well; values by rank."""

    failed: str
    recording: Recording
    measured: Mapping[int, Mapping[str, Any]]
    results: Mapping[int, Mapping[str, Any]]


def train(request: Path, ranks: int, folder: Path, seconds: float) -> Trained:
    """Train what the request says on so many ranks. After `seconds` it is ended, and counts as failed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    env = {**os.environ, **ProbeSettings(STREAMS).hand_over(folder)}
    env.pop("DISTDOCTOR", None)
    process = subprocess.Popen(
        [*command, "-m", "distdoctor.workloads.train", str(request)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        with leaving_by_signals():
            _, errors = process.communicate(timeout=seconds)
        failed = _reason(errors) if process.returncode else ""
    except subprocess.TimeoutExpired:
        failed = f"it did not end within {seconds:.0f} s"
    finally:
        if process.poll() is None:
            _end(process)
    measured, results = _by_rank(folder, "measured"), _by_rank(folder, "result")
    if not failed and not measured:
        failed = "no rank has trained"
    recording = open_run(folder) if not failed else Recording(Job(), {})
    return Trained(failed, recording, measured, results)


@contextlib.contextmanager
def leaving_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP leave by an exception, as Ctrl-C does, so that whoever started a training ends it on the way out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[str]) -> None:
    """The launcher and its ranks, which are a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.communicate(timeout=10)
            return
        except (ProcessLookupError, PermissionError):
            return
        except subprocess.TimeoutExpired:
            continue


def _by_rank(folder: Path, name: str) -> dict[int, Mapping[str, Any]]:
    paths = {int(path.stem.rpartition("-")[2]): path for path in folder.glob(f"{name}-*.json")}
    return {rank: json.loads(path.read_text("utf-8")) for rank, path in sorted(paths.items())}


def _reason(errors: str) -> str:
    """The line that says why: our own `error:`, else the first exception of a rank, else the last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("error: ")]
    if ours:
        return ours[0].removeprefix("error: ")
    bare = [line.partition("]: ")[2] or line for line in lines]
    raised = [
        line
        for line in bare
        if line.partition(":")[0].endswith(("Error", "Exception")) and " " not in line.partition(":")[0]
        and not line.startswith("torch.distributed.elastic")
    ]  # fmt: skip
    return (raised[0] if raised else bare[-1] if bare else "it ended without a word")[:300]
