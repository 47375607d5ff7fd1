"""Forget the gradients of the step before."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

ZERO_GRAD = Remedy(
    slug="zero-grad",
    what="Call optimizer.zero_grad() once per step, before its first backward.",
    how="""optimizer.zero_grad()
loss = criterion(model(inputs), targets)
loss.backward()
optimizer.step()""",
    effect="Each step uses its own gradients.",
    safety="changes the training from the second step on: it becomes the one that was meant",
    source="torch.optim.Optimizer.zero_grad",
)
