"""Find the operation that makes the first NaN or infinity."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

FIND_THE_FIRST_NAN = Remedy(
    slug="find-the-first-nan",
    what="Look at that rank's batch of that step, then at the named layer; `distdoctor check-grads` names the layer.",
    how="""distdoctor check-grads --nproc 2 train.py
# then, for the one operation in that layer:
with torch.autograd.detect_anomaly():
    loss = criterion(model(inputs), targets)
    loss.backward()""",
    effect="Rank, step, layer and direction of the first value that is not finite.",
    safety="detect_anomaly costs 20-160 % of a step",
    source="torch.autograd.detect_anomaly",
)
