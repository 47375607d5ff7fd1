"""Divide the loss by the number of micro-steps, once."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

DIVIDE_ONCE = Remedy(
    slug="divide-once",
    what="Divide each micro-step's mean loss by the number of micro-steps, once, before backward.",
    how="""for inputs, targets in micro_batches:                 # `accumulate` of them
    (criterion(model(inputs), targets) / accumulate).backward()
optimizer.step()""",
    effect="Gradients are those of the mean over the whole batch, whatever the number of micro-steps.",
    safety="changes the size of the gradients; a learning rate that was tuned to the old size has to be tuned again",
    source="PyTorch, Automatic Mixed Precision examples, gradient accumulation",
)
