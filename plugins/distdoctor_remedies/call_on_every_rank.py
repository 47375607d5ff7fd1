"""Issue a collective on every rank of its group, or on none."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="call-on-every-rank",
    what="Issue the collective on every rank of its group, or on none.",
    how="if rank == 0:\n    save(model)\ndist.barrier()  # outside: every rank comes here",
    effect="the ranks meet again at the same sequence number",
    safety="changes no result; ranks that have nothing to contribute pass neutral values (zeros for a sum)",
    source="torch.distributed: collectives have to be called by all members of the group, in the same order",
)
