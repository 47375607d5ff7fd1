"""Average gradients once per optimizer step, in the last micro-step."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="no-sync",
    what="Average gradients once per optimizer step, in the last micro-step.",
    how="""is_last = (i + 1) % accumulate == 0
with nullcontext() if is_last else model.no_sync():
    loss = criterion(model(inputs), targets) / accumulate
    loss.backward()
if is_last:
    optimizer.step()
    optimizer.zero_grad()""",
    effect="(n - 1) / n of the bytes of a step; of the time, what a pass waits for its buckets",
    safety="same gradients up to rounding; keep the forward inside the context as well",
    source="torch.nn.parallel.DistributedDataParallel.no_sync",
)
