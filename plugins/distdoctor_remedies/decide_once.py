"""Decide on one rank, or together, and let every rank act on the same answer."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="decide-once",
    what="Decide once for all ranks: reduce or broadcast the value before the condition tests it.",
    how=(
        "better = torch.tensor([float(loss < best)], device=device)\n"
        "dist.broadcast(better, src=0)  # or all_reduce(better, op=ReduceOp.MAX)\n"
        "if better.item():\n    dist.barrier()"
    ),
    effect="one small collective per decision; every rank takes the same branch",
    safety="all ranks now follow rank 0's decision (or the joint one)",
    source="torch.distributed.broadcast",
)
