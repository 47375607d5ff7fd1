"""Give every send its recv: the same group, tag, size and dtype, and each other as peers."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="pair-send-with-recv",
    what="Give every send its recv: the same group, tag, size and dtype, and each other as peers.",
    how=("if rank == 0:\n    dist.send(x, dst=1, tag=7)\nelif rank == 1:\n    dist.recv(x, src=0, tag=7)"),
    effect="both ends meet",
    safety="changes no result",
    source="torch.distributed.send, recv",
)
