"""Wait for the handle before the tensor is used."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="wait-for-the-handle",
    what="Wait for the handle before the tensor is used.",
    how="handle = dist.all_reduce(x, async_op=True)\n...  # what does not touch x\nhandle.wait()",
    effect="x holds the result; what runs between the two lines still overlaps with the communication",
    safety="changes results that depended on timing; leaving async_op out is the same without the overlap",
    source="torch.distributed, Synchronous and asynchronous collective operations",
)
