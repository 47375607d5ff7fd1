"""A few steps of a reference training in real processes, with something planted to look at them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from distdoctor.errors import CouldNotLook
from distdoctor.planning import memory_results
from distdoctor.planning.prediction import sent_bytes
from distdoctor.workloads.request import TrainingRequest

SECONDS = 600
STEPS = 4
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "0"}
"""glibc gives back what torch frees at once: what is resident is what is held."""
SHORT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "OutOfMemoryError",
    "MemoryError",
    "Cannot allocate memory",
    "std::bad_alloc",
)


@dataclass(frozen=True)
class RealSteps:
    """What the ranks wrote, by rank; `short` when an allocation failed."""

    by_rank: dict[int, dict[str, Any]]
    short: bool = False

    @property
    def peak_bytes(self) -> int:
        """Of the setup and an ordinary step, on the rank that needed most."""
        return max(memory_results.typical_peak(one) for one in self.by_rank.values())

    @property
    def step_seconds(self) -> float:
        """The median of the steps after the first, on the slowest rank."""
        return max(float(median(one["seconds"][1:] or [0.0])) for one in self.by_rank.values())

    @property
    def scatter_seconds(self) -> float:
        """How far steps are from that median, in the median."""
        middle = self.step_seconds
        return max(
            float(median([abs(seconds - middle) for seconds in one["seconds"][1:]] or [0.0]))
            for one in self.by_rank.values()
        )

    @property
    def sent_bytes(self) -> int:
        """What one rank sent in the last step, with ring algorithms."""
        return max(sent_bytes(one["traffic"], len(self.by_rank)) for one in self.by_rank.values())


def train(request: TrainingRequest, ranks: int, plant: str, *, steps: int = STEPS) -> RealSteps:
    """Train this many steps on this many ranks.

    CouldNotLook: it fails for another reason than memory.
    """
    drills = (*request.drills, plant)
    wanted = replace(request, steps=steps, epochs=steps, evaluate=False, save=None, resume=None, drills=drills)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        replace(wanted, result=folder).write(path)
        outside = {
            name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        }
        environment = {**outside, **MALLOC, "DISTDOCTOR": "0"}
        environment.setdefault("OMP_NUM_THREADS", "1")
        command = [sys.executable]
        if ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        done = subprocess.run(
            [*command, "-m", "distdoctor.workloads.train", str(path)],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            timeout=SECONDS,
        )
        if done.returncode == 0:
            return RealSteps(memory_results.read(Path(folder)))
    if any(words in done.stderr for words in SHORT_OF_MEMORY):
        return RealSteps({}, short=True)
    raise CouldNotLook(
        f"{request.strategy} on {ranks} ranks failed: {_last_error(done.stderr)}",
        way_out=f"Try `distdoctor run --strategy {request.strategy} --nproc {ranks}` by itself.",
    )


def _last_error(text: str) -> str:
    lines = [
        line.partition("]:")[2].strip() or line.strip()
        for line in text.splitlines()
        if "Error" in line or "error:" in line
    ]
    return lines[0] if lines else "no message"
