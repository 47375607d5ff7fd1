"""Compute forward and loss under autocast in 16 bits."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="mixed-precision",
    what="Compute forward and loss under autocast in 16 bits.",
    how="""with torch.autocast("cuda", torch.bfloat16):
    loss = criterion(model(inputs), targets)""",
    effect="What matrix products keep for backward halves; parameters and optimizer state stay in fp32.",
    safety="rounds to 8 bits of mantissa (bf16); fp16 needs a GradScaler",
    source="torch.amp",
)
