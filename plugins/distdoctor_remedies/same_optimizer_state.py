"""Give every replica the same optimizer state."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SAME_OPTIMIZER_STATE = Remedy(
    slug="same-optimizer-state",
    what="Load the same optimizer state on every rank, and change it on every rank or on none.",
    how="""checkpoint = torch.load(path, map_location=device)   # on every rank
optimizer.load_state_dict(checkpoint["optimizer"])""",
    effect="Momentum and variance agree bit for bit, and so do the next steps.",
    safety="ranks that had another state take other steps than before",
    source="torch.optim.Optimizer.load_state_dict",
)
