"""One job twice more: to a checkpoint, and on from it. Each run leaves a recording of what it drew."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from distdoctor.launch.side_by_side import _end, _reason, leaving_by_signals
from distdoctor.recording.trace.probe_settings import ProbeSettings

STREAMS = frozenset({"collectives", "progress", "samples"})  # what the comparison of the data needs
_RENDEZVOUS = ("--rdzv", "--master", "--nnodes", "--node", "--standalone")  # how the options begin that settle it
BEFORE, AFTER = "interrupted", "resumed"  # folders within the run folder


def torchrun(options: Sequence[str], script: Sequence[str]) -> list[str]:
    """The command line of torch's own launcher. Where nothing is asked about the rendezvous it takes a free port, which before
    torch 2.14 it does only when told to: ours may still hold the usual one."""
    asked = any(option.startswith(_RENDEZVOUS) for option in options)
    standalone = [] if asked else ["--standalone"]
    return [sys.executable, "-m", "torch.distributed.run", *standalone, *options, *script]


def run(
    command: Sequence[str],
    folder: Path,
    seconds: float,
    *,
    kill_at: int = 0,
    probe: ProbeSettings | None = None,
    within: Path | None = None,
) -> str:
    """Run to the end, recording into `folder`; why it failed in one line, "" when it did not. Ended after `seconds`.

    `within` is the working folder, ours where it is left out.

    With `kill_at` every rank is killed after so many optimizer steps, and that the job fails is no failure.

    What the job prints to stdout is left out: it has been seen in the uninterrupted run.
    """
    folder.mkdir(mode=0o700)
    env = {**os.environ, **replace(probe or ProbeSettings(STREAMS), kill_at=kill_at).hand_over(folder)}
    env.pop("DISTDOCTOR", None)
    if within is not None and "--module" in command:  # the module here, and not the one in the folder where it runs
        env["PYTHONSAFEPATH"] = "1"
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), env.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command,
        cwd=within,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        with leaving_by_signals():
            _, errors = process.communicate(timeout=seconds)
        return _reason(errors) if process.returncode and not kill_at else ""
    except subprocess.TimeoutExpired:
        return f"it did not end within {seconds:.0f} s"
    finally:
        if process.poll() is None:
            _end(process)
