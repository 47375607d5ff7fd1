"""What a rank of a reference training really allocates at most, to hold a prediction against.

Planted into a training like a drill; it writes `memory-<rank>.json` into the folder that DISTDOCTOR_MEMORY names. On the CPU the
profiler's memory events are the truth, each allocation and each release of torch's allocator; on a GPU the allocator's own peak.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from distdoctor.workloads import memory_results

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

STEP = "distdoctor: a step begins"
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

    def step_starts() -> None:
        steps.append(time.perf_counter())
        with torch.profiler.record_function(STEP):
            pass

    def write(training: Training) -> None:
        if on_gpu:
            peaks = [torch.cuda.max_memory_allocated(training.device)]
        else:
            profiler.stop()
            peaks = peaks_of(profiler)
        seconds = [after - before for before, after in itertools.pairwise(steps)]
        memory_results.write(os.environ[memory_results.FOLDER], training.rank, peaks, seconds)

    training.replace("make_model", make_model)
    training.on("step_start", lambda _: step_starts())
    training.on("training_end", write)


def peaks_of(profiler: Any) -> list[int]:
    """Bytes of host memory: the most at one time until the first step, and in each step."""
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() in ("[memory]", STEP)]
    held, peaks = 0, [0]
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == STEP:
            peaks.append(held)
        elif event.device_type() == torch._C._autograd.DeviceType.CPU:
            held += event.nbytes()
            peaks[-1] = max(peaks[-1], held)
    return peaks
