"""Unscale gradients before they are clipped or looked at."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

UNSCALE_FIRST = Remedy(
    slug="unscale-first",
    what="Call scaler.unscale_(optimizer) before clipping.",
    how="""scaler.scale(loss).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
scaler.step(optimizer)             # does not unscale again
scaler.update()""",
    effect="The limit meets the real gradients.",
    safety="steps become as large as the limit was meant to allow",
    source="PyTorch, Automatic Mixed Precision examples",
)
