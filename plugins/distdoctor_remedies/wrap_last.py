"""Wrap a model when it is complete: unfrozen, extended, moved and cast."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

WRAP_LAST = Remedy(
    slug="wrap-last",
    what="Unfreeze, add, move and cast first; make DistributedDataParallel after it, and the optimizer after that.",
    how="""model.body.requires_grad_(True)
model.to(device)
model = DistributedDataParallel(model)             # takes stock of what is trained
optimizer = torch.optim.AdamW(model.parameters())  # after every change, wrap and make it again""",
    effect="Every trained parameter is averaged.",
    safety="a new optimizer starts without momentum; load its state where it matters",
    source="torch.nn.parallel.DistributedDataParallel, warning on parameters that change later",
)
