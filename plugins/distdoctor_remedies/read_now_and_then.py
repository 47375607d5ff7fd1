"""Read numbers from the device once in many steps."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="read-now-and-then",
    what="Read numbers from the device once in many steps.",
    how="""total += loss.detach()  # stays on the device
if step % 100 == 0:
    print(total.item() / 100)
    total.zero_()""",
    effect="Python runs ahead of the device again; at most the time that the finding names",
    safety="a NaN is noticed up to so many steps later",
    source="PyTorch performance tuning guide",
)
