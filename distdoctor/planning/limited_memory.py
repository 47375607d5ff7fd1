"""A rank of a reference training that may take only so many bytes for its model and everything after it.

Planted like a drill; the request says how many. On the CPU the kernel refuses what goes beyond (RLIMIT_DATA), on a GPU the
caching allocator does.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from distdoctor.planning import memory_results

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

PLANT = "distdoctor.planning.limited_memory:plant"


def plant(training: Training) -> None:
    """Set the limit when the data is read and the model not yet made."""
    usual = training.make_model

    def make_model() -> nn.Module:
        _ = training.train_set[0]
        budget = training.request.limit_bytes
        if training.device.type == "cuda":
            whole = torch.cuda.get_device_properties(training.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget / whole), training.device)
        else:
            _, most = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (_held_now() + budget, most))
        return usual()

    def write(training: Training) -> None:
        memory_results.write(training.request.result or ".", training.rank, [0], [])

    training.replace("make_model", make_model)
    training.on("training_end", write)


def _held_now() -> int:
    """Bytes of private writable memory of this process, which is what RLIMIT_DATA limits (Linux 4.7 and later)."""
    status = Path("/proc/self/status").read_text("ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:")) * 1024
