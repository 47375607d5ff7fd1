"""What `distdoctor compare` wants to know of a reference training besides its result: step times and peaks of memory.

Planted into a training like a drill; it writes `measured-<rank>.json` into the request's folder of results.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training


def plant(training: Training) -> None:
    """Look at the clock after every step, when its device is done. That ends what runs ahead: it is for comparing only."""
    measures = Measures(training)
    training.on("training_start", measures.starts)
    training.on("after_step", measures.stepped)
    training.on("training_end", measures.ends)


class Measures:
    """One rank's. Times are seconds, sizes bytes."""

    def __init__(self, training: Training) -> None:
        self.device = training.device
        self.before = resident_bytes()
        self.steps: list[float] = []
        self._last = 0.0

    def starts(self, training: Training) -> None:
        self._last = time.perf_counter()

    def stepped(self, training: Training) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.steps.append(now - self._last)
        self._last = now

    def ends(self, training: Training) -> None:
        on_device = self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.device) if on_device else peak_resident_bytes()
        found = {
            "device": self.device.type,
            "step_seconds": self.steps,
            "peak_bytes": peak,
            "peak_bytes_of_training": peak if on_device else max(0, peak - self.before),
            "threads": torch.get_num_threads(),
        }
        if training.request.result:
            (Path(training.request.result) / f"measured-{training.rank}.json").write_text(json.dumps(found), "utf-8")


def resident_bytes() -> int:
    """What this process has in memory now; 0 where /proc does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def peak_resident_bytes() -> int:
    """The most that this process ever had in memory (Linux: ru_maxrss is in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
