"""What a rank of a reference training really allocates at most, to hold a prediction against.

Planted into a training like a drill; it writes `memory-<rank>.json` into the folder that DISTDOCTOR_MEMORY names. On the CPU the
profiler's memory events are the truth, each allocation and each release of torch's allocator; on a GPU the allocator's own peak.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

FOLDER = "DISTDOCTOR_MEMORY"
PLANT = "distdoctor.workloads.measured_memory:plant"


def plant(training: Training) -> None:
    """Count from before the model is made, with the data already read, to the end of the last step."""
    usual = training.make_model
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    on_gpu = training.device.type == "cuda"
    steps: list[float] = []

    def make_model() -> nn.Module:
        _ = training.train_set[0]
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(training.device)
        else:
            profiler.start()
        return usual()

    def write(training: Training) -> None:
        if on_gpu:
            peak = torch.cuda.max_memory_allocated(training.device)
        else:
            profiler.stop()
            peak = peak_of(profiler)
        found = {
            "rank": training.rank,
            "peak_bytes": peak,
            "seconds": [b - a for a, b in itertools.pairwise(steps)],
        }
        (Path(os.environ[FOLDER]) / f"memory-{training.rank}.json").write_text(json.dumps(found), encoding="utf-8")

    training.replace("make_model", make_model)
    training.on("step_start", lambda _: steps.append(time.perf_counter()))
    training.on("training_end", write)


def peak_of(profiler: Any) -> int:
    """The most bytes of host memory that were allocated at one time while this profiler ran."""
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.device_type() == torch._C._autograd.DeviceType.CPU:
            held += event.nbytes()
            peak = max(peak, held)
    return int(peak)


def read(folder: Path) -> dict[int, dict[str, Any]]:
    """What each rank wrote, by rank."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("memory-*.json")]
    return {one["rank"]: one for one in sorted(found, key=lambda one: int(one["rank"]))}
