"""What a rank of a reference training really allocates at most, and sends in a step, to hold a prediction against.

Planted into a training like a drill; it writes `memory-<rank>.json` into the request's folder of results. On the CPU the
truth is what torch's allocator says it holds at each of the profiler's memory events; on a GPU the allocator's own peak.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from distdoctor.planning import memory_results

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

STEP = "distdoctor: a step begins"
PLANT = "distdoctor.planning.measured_memory:plant"
HAS_HOOKS = hasattr(torch.distributed.ProcessGroup, "register_pre_hook")
HOOK = 0x0D0D  # any number that no one else uses on the same group
IN_ALL_THREADS = "FLAGS_caffe2_report_cpu_memory_usage"
"""c10/core/CPUAllocator.cpp: with it, what threads without a profiler free counts as well. gloo's threads free the buffers of
collectives; without it, these were held forever."""
UNTIL_FREED = 0.05
"""Seconds that the first step waits before its optimizer makes its state: gloo's threads free the last bucket a moment after the
collective is done, on a busy machine later than that. There are more steps of the later kind, of which the lowest counts."""


def plant(training: Training) -> None:
    """Count from before the model is made, with the data already read, to the end of the last step."""
    usual = training.make_model
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    on_gpu = training.device.type == "cuda"
    steps: list[float] = []
    traffic: dict[str, int] = {}

    def make_model() -> nn.Module:
        _ = training.train_set[0]
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(training.device)
        else:
            count_in_all_threads(True)
            profiler.start()
        return usual()

    def step_starts() -> None:
        steps.append(time.perf_counter())
        traffic.clear()
        with torch.profiler.record_function(STEP):
            pass

    def gradients_are_reduced() -> None:
        if len(steps) == 1 and not on_gpu:
            time.sleep(UNTIL_FREED)

    def write(training: Training) -> None:
        if on_gpu:
            peaks = [torch.cuda.max_memory_allocated(training.device)]
        else:
            profiler.stop()
            count_in_all_threads(False)
            peaks = peaks_of(profiler)
        seconds = [after - before for before, after in itertools.pairwise(steps)]
        memory_results.write(training.request.result or ".", training.rank, peaks, seconds, traffic)

    training.replace("make_model", make_model)
    training.on("step_start", lambda _: step_starts())
    training.on("before_optimizer_step", lambda _: gradients_are_reduced())
    training.on("training_end", write)
    count_traffic(training, traffic)


def count_traffic(training: Training, traffic: dict[str, int]) -> None:
    """Add the bytes of every collective to `traffic`, by operation (torch >= 2.14, whose hooks see C++ callers too)."""
    join, leave = training.join, training.leave

    def note(args: Any) -> None:
        size = max(sum(tensor.nbytes for tensor in tensors) for tensors in (args.input_tensors, args.output_tensors))
        traffic[args.name.name.lower()] = traffic.get(args.name.name.lower(), 0) + size

    def listening() -> None:
        join()
        if HAS_HOOKS:
            _world().register_pre_hook(HOOK, note)

    def leaving() -> None:
        if HAS_HOOKS:
            _world().unregister_pre_hook(HOOK)
        leave()

    training.replace("join", listening)
    training.replace("leave", leaving)


def _world() -> Any:
    return torch.distributed.group.WORLD


def count_in_all_threads(on: bool) -> None:
    """From now on, the sums in the profiler's memory events hold what other threads allocate and free, or they do not."""
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        ctypes.c_bool.in_dll(ctypes.CDLL(str(library)), IN_ALL_THREADS).value = on
    except (OSError, ValueError):
        return  # a torch without it measures somewhat more than is held


def peaks_of(profiler: Any) -> list[int]:
    """Bytes of host memory: the most at one time until the first step, and in each step."""
    seen = sorted(_sums(profiler.profiler.kineto_results.experimental_event_tree()))
    before, peaks, held = None, [0], 0
    for _, total, change in seen:
        if total is None:
            peaks.append(held)
            continue
        before = total - change if before is None else before
        held = total - before
        peaks[-1] = max(peaks[-1], held)
    return peaks


def _sums(events: Iterable[Any]) -> Iterator[tuple[int, int | None, int]]:
    """(nanoseconds, what the CPU's allocator holds, by how much that changed) of each event; None where a step begins."""
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting += event.children
        about = event.extra_fields
        if event.name == STEP:
            yield event.start_time_ns, None, 0
        elif type(about).__name__ == "_ExtraFields_Allocation" and about.device.type == "cpu":
            yield event.start_time_ns, about.total_allocated, about.alloc_size
