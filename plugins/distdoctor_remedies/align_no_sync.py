"""Synchronise in exactly the micro-step that ends with the optimizer's step."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

ALIGN_NO_SYNC = Remedy(
    slug="align-no-sync",
    what="Let the same condition decide on synchronising and on stepping, with forward and backward in one context.",
    how="""is_last = (i + 1) % accumulate == 0
with nullcontext() if is_last else model.no_sync():
    loss = criterion(model(inputs), targets) / accumulate
    loss.backward()
if is_last:
    optimizer.step()
    optimizer.zero_grad()""",
    effect="One reduction per step, of the whole accumulated gradient.",
    safety="changes the training from this step on: it becomes the one that was meant",
    source="torch.nn.parallel.DistributedDataParallel.no_sync",
)
