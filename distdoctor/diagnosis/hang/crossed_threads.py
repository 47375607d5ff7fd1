"""Threads of one rank that issue calls on one group at the same time: nothing orders them, so ranks may pair different ones.

Autograd's threads are none of these: who called `backward` waits for them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from distdoctor.diagnosis.facts.collectives import Collectives, Track
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.recording.trace.reader import Rows

LOOKED_AT = 64  # calls of the group up to the one in which the ranks stand or part
_RETURNS_AT_ONCE = CallFlag.ASYNC | CallFlag.NATIVE


def crossed_calls(facts: Collectives, incident: Incident) -> tuple[Call, Call] | None:
    """The last call of a thread of the user's that was not over when another thread of its rank issued the next one on the
    group, and that one; None where one thread speaks for each rank, or they take turns."""
    if incident.kind is IncidentKind.DIVERGED and incident.divergence is not None:
        group, number = incident.divergence.group, incident.divergence.number
    elif incident.kind is IncidentKind.TOGETHER and incident.waiting and incident.waiting[0].group is not None:
        group, number = incident.waiting[0].group, incident.waiting[0].call.number
    else:
        return None
    if group.backend == "nccl":  # a call comes back at once, and what is noted of it is its device's end
        return None
    found = (crossing for track in group.tracks.values() if (crossing := _crossing(track, number)) is not None)
    return max(found, key=lambda calls: calls[0].number, default=None)


def _crossing(track: Track, number: int) -> tuple[Call, Call] | None:
    rows = track.rows
    end = int(np.searchsorted(rows["number"], number, side="right"))
    near = rows[max(0, end - LOOKED_AT) : end + 1]
    if len(near) < 2 or len(set(near["thread"].tolist())) < 2:
        return None
    for one, other in reversed(list(pairwise(near))):
        if one["thread"] != other["thread"] and _lasts(one, int(other["entered_ns"])) and _is_by_hand(one, other):
            log = track.timeline.log
            return log.call(one), log.call(other)
    return None


def _lasts(row: Rows, until_ns: int) -> bool:
    """Whether a blocking call was not over at that moment."""
    blocks = not int(row["flags"]) & _RETURNS_AT_ONCE
    return blocks and (not row["returned_ns"] or int(row["returned_ns"]) > until_ns)


def _is_by_hand(one: Rows, other: Rows) -> bool:
    """Whether a thread that the program started itself issued one of them, and not for a `backward`."""
    return any(int(row["thread"]) and not int(row["flags"]) & CallFlag.NATIVE for row in (one, other))
