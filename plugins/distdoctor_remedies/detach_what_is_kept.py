"""Keep numbers or detached tensors."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

DETACH_WHAT_IS_KEPT = Remedy(
    slug="detach-what-is-kept",
    what="Keep numbers or detached tensors, so that the graph behind them is freed with its step.",
    how="""total += loss.item()             # or loss.detach(), which does not wait for the device
outputs.append(output.detach().cpu())
hidden = hidden.detach()         # between two batches: truncated backpropagation through time""",
    effect="Memory stays what it is after the first steps.",
    safety="changes no result, unless gradients through earlier steps were meant",
    source="PyTorch notes, FAQ: My model reports out of memory",
)
