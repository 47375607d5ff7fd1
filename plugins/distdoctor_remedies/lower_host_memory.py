"""Use less host memory per process, or give the job more."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="lower-host-memory",
    what="Use less host memory per rank (fewer DataLoader workers, less prefetch, no pinned copies), or raise the limit.",
    how="DataLoader(dataset, num_workers=2, prefetch_factor=2, pin_memory=False)",
    effect="each worker holds prefetch_factor batches and its own copy of what Python touches in the data set",
    safety="may slow loading down",
    source="Linux: dmesg shows `Out of memory: Killed process`; containers: memory.events (oom_kill)",
)
