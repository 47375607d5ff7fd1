"""Give gradients back between steps instead of filling them with zeros."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="set-gradients-to-none",
    what="Give gradients back with zero_grad(), whose default is set_to_none=True, instead of filling them with zeros.",
    how="optimizer.zero_grad()  # not zero_grad(set_to_none=False)",
    effect="The gradients' bytes are free during the forward: measured 1.29 MiB of 35.1 MiB (gpt, 2 ranks) by "
    "`distdoctor advise --try`.",
    safety="changes no result; code that reads .grad of an unused parameter finds None instead of zeros, and some optimizers "
    "skip such a parameter instead of decaying it",
    source="torch.optim.Optimizer.zero_grad",
)
