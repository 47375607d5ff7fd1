"""Healthy jobs that pause for long, at every place, under `--on-hang abort` and without a terminal: is any of them touched?

    python benchmarks/pauses.py [--seconds 20] [--at-once 4] [PLACE ...]

Prints, per place, the exit code, what was said while the job ran, what was withdrawn, and what the report at the end holds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

JOBS = Path(__file__).parent.parent / "tests" / "jobs" / "pauses.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "CI": "true"}


@dataclass(frozen=True)
class Paused:
    """How one job ended. `said` while it ran; `findings` of the report that are no notes."""

    place: str
    exit_code: int
    said: list[str]
    withdrawn: int
    findings: list[str]
    words: str

    @property
    def touched(self) -> bool:
        return self.exit_code != 0 or bool(self.findings)


def paused(place: str, seconds: float) -> Paused:
    """Run one job to its end."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            sys.executable,
            "-m",
            "distdoctor",
            "run",
            "--on-hang",
            "abort",
            "--nproc",
            "2",
            "--output-format",
            "json",
        ]
        done = subprocess.run(
            [*words, str(JOBS), place, str(seconds)],
            cwd=folder,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds + 300,
        )
    lines = done.stderr.splitlines()
    said = [lines[at + 1] for at, line in enumerate(lines[:-1]) if line.endswith("found while the job runs:")]
    report = json.loads(done.stdout) if done.stdout.startswith("{") else {"findings": []}
    findings = [f"{f['code']} {f['confidence']} {f['title']}" for f in report["findings"] if f["severity"] != "note"]
    withdrawn = sum("the job went on after" in line and "withdrawn" in line for line in lines)
    return Paused(place, done.returncode, said, withdrawn, findings, done.stderr)


def main() -> None:
    sys.path.insert(0, str(JOBS.parent))
    from pauses import PLACES  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("places", nargs="*", default=[])
    options = parser.parse_args()
    print("| pause | exit | said meanwhile | withdrawn | in the report |\n|---|---|---|---|---|", flush=True)
    touched = 0
    with ThreadPoolExecutor(options.at_once) as pool:
        for done in pool.map(lambda place: paused(place, options.seconds), options.places or list(PLACES)):
            touched += done.touched
            said = "; ".join(line[:60] for line in done.said)
            report = "; ".join(done.findings) or "clean"
            print(f"| {done.place} | {done.exit_code} | {said} | {done.withdrawn} | {report[:120]} |", flush=True)
    print(f"\ntouched: {touched}")


if __name__ == "__main__":
    main()
