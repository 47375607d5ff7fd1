"""What torch prints under TORCH_DISTRIBUTED_DEBUG=DETAIL when ranks issue different collectives.

Each rank prints its own call first, and then a peer's as it came over the wire. Of another operation that is garbage (torch 2.15:
`SequenceNumber=0OpType=SCATTER` for a barrier), so what a rank says of itself comes first, and of a peer that printed nothing
only that it differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from distdoctor.recording.clue import Clue

_CALL = (
    r"CollectiveFingerPrint\(SequenceNumber=(\d{1,18})(?:, )?OpType=(\w{1,40})"
    r"(?:, TensorShape=\[([\d, ]{0,400})\], TensorDtypes=(\w{1,40}))?"
)
_OWN = re.compile(rf"Detected mismatch between collectives on ranks\. Rank (\d{{1,9}}) is running collective: {_CALL}")
_PEER = re.compile(rf"but Rank (\d{{1,9}}) is running collective: {_CALL}")


class Fingerprint(NamedTuple):
    """One rank's own call. `shape` and `dtype` are "" where it has no tensor."""

    number: int
    operation: str
    shape: str
    dtype: str
    clue: Clue


def fingerprints(clues: Iterable[Clue]) -> list[Fingerprint]:
    """What each rank says of its own call, in the first line in which it does; of a log with one such line, both sides of it.

    The lines name ranks by their numbers in the group: where these are not their own, only a rank's prefix tells who it is, and
    lines of several groups cannot be told apart.
    """
    found: dict[int, Fingerprint] = {}
    peers: dict[int, Fingerprint] = {}
    in_group: dict[int, int] = {}  # number in the group -> rank
    for clue in clues:
        if own := _OWN.search(clue.words):
            rank = clue.rank if clue.rank >= 0 else int(own[1])
            if in_group.setdefault(int(own[1]), rank) != rank:
                return []
            first = found.setdefault(rank, _of(own, rank, clue))
            if rank != int(own[1]):
                continue
            if (peer := _PEER.search(clue.words, own.end())) and (peer[5] or peer[3] != first.operation):
                peers.setdefault(int(peer[1]), _differing(_of(peer, int(peer[1]), clue), first))
    if len(found) == 1:
        found = {**peers, **found}
    return [own for _, own in sorted(found.items())]


def _of(match: re.Match[str], rank: int, clue: Clue) -> Fingerprint:
    _, number, operation, shape, dtype = match.groups("")
    return Fingerprint(int(number), operation, shape, dtype.lower(), replace(clue, rank=rank))


def _differing(peer: Fingerprint, own: Fingerprint) -> Fingerprint:
    """What can be believed of a peer's call: of another operation nothing but that."""
    if peer.shape and peer.operation == own.operation:
        return peer
    return peer._replace(number=own.number, operation="another one", shape="", dtype="")
