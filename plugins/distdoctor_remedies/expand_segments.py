"""Let the allocator grow its segments."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

EXPAND_SEGMENTS = Remedy(
    slug="expand-segments",
    what="Start the job with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    how="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ...",
    effect="Blocks are mapped into one growing segment, so that free ones next to each other can be used together.",
    safety="changes no result; CUDA only, and not with every driver",
    source="PyTorch notes, CUDA semantics: Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF",
)
