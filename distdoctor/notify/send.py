"""Send an alert in a process of its own: whatever a library does there (ask for a key, print, hang, crash), we go on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.notify.alert import Alert, alert_of
from distdoctor.notify.ways import Target
from distdoctor.recording.files import write_whole
from distdoctor.recording.trace.probe_settings import VARIABLE as PROBE

MOST_SECONDS = 60.0  # for all ways together: an upload takes a few


class Delivered(msgspec.Struct):
    """What the process says when it is done: where the alert has gone, or why it has not."""

    sent: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class _Sending:
    target: Target
    process: subprocess.Popen[bytes]
    outcome: Path


def send(
    diagnosis: Diagnosis, name: str, targets: Sequence[Target], say: Callable[[str], None], warn: Callable[[str], None]
) -> None:
    """One line for each target: to `say` where the alert has gone, to `warn` why it has not. Never raises.

    `name`: of the run. Returns after a minute at the latest.
    """
    try:
        with contextlib.ExitStack() as stack:
            sendings = list(_started(diagnosis, name, targets, stack, warn))
            ends = time.monotonic() + MOST_SECONDS
            for one in sendings:
                outcome = _waited_for(one, ends)
                name_of_way = one.target.way.name
                if outcome.sent:
                    say(f"notified {name_of_way}: {outcome.sent}")
                else:
                    warn(f"{name_of_way} was not notified: {outcome.trouble}")
    except KeyboardInterrupt:
        warn("nobody was notified: interrupted")
    except Exception as trouble:
        warn(f"nobody was notified: {type(trouble).__name__}: {trouble}")


def _started(
    diagnosis: Diagnosis,
    name: str,
    targets: Sequence[Target],
    stack: contextlib.ExitStack,
    warn: Callable[[str], None],
) -> Iterator[_Sending]:
    """The processes, side by side; they and their files are gone when `stack` is closed."""
    usable = []
    for target in targets:
        if target.missing:
            warn(f"{target.way.name} was not notified: {target.missing}")
        else:
            usable.append(target)
    if not usable:
        return
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distdoctor-notify-")))
    _write(folder, diagnosis, alert_of(diagnosis, name))
    for number, target in enumerate(usable):
        outcome = folder / f"outcome-{number}.json"
        words = [
            sys.executable,
            "-P",
            "-m",
            "distdoctor.notify",
            target.way.name,
            target.where,
            str(folder),
            str(outcome),
        ]
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={key: value for key, value in os.environ.items() if key != PROBE} | {"DISTDOCTOR": "0"},
        )
        stack.callback(_end, process)
        yield _Sending(target, process, outcome)


def _write(folder: Path, diagnosis: Diagnosis, alert: Alert) -> None:
    from distdoctor.report import html, json_report

    write_whole(folder / "alert.json", msgspec.json.encode(alert).decode())
    for name, render in (("report.html", html.render), ("report.json", json_report.render)):
        write_whole(folder / name, render(diagnosis))


def _waited_for(one: _Sending, ends: float) -> Delivered:
    try:
        code = one.process.wait(max(0.1, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Delivered(trouble=f"it did not answer within {MOST_SECONDS:.0f} s")
    try:
        return msgspec.json.decode(one.outcome.read_bytes(), type=Delivered)
    except (OSError, msgspec.MsgspecError):
        return Delivered(trouble=f"its process ended with exit code {code}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Our own process and nobody else's; what it started (a library's service) ends when it is gone."""
    if process.poll() is None:
        process.kill()
    process.wait()
