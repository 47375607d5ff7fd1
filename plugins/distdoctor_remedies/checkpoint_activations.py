"""Keep only the input of each block, and compute the rest again in backward."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="checkpoint-activations",
    what="Keep only the input of each block, and compute the rest again in backward.",
    how="""from torch.utils.checkpoint import checkpoint
stream = checkpoint(block, stream, use_reentrant=False)""",
    effect="Activations shrink to one tensor per block and one block's own; a step computes about a third more.",
    safety="the same gradients; random layers draw the same numbers again",
    source="torch.utils.checkpoint",
)
