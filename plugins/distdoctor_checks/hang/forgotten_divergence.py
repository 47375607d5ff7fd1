"""
DD131 forgotten-divergence: ranks issued different collectives so long ago that the recording no longer holds them.

What it means    Two ranks have issued equally many collectives on a group, but the running digests of those calls differ.
                 Somewhere before the calls still on record, one rank issued a different one.
Why it hurts     Nothing hung, so the backend paired calls that do not belong together. The ranks have held different numbers
                 ever since, without any error.
How we know      Each rank keeps, per group, one digest of the signatures of all its collectives (operation, dtype, sizes,
                 reduction, root). The calls still on record are equal on both ranks, so the difference is older.
What to do       Run again under `distdoctor run`, which reports such a difference within seconds, with its line. To end the job
                 at that point, add --stop-on DD105 --stop-on DD107.
When it is fine  Signatures that differ but still fit (a tensor flattened on one rank only): if the calls on record show such
                 pairs, nothing is reported.
Source           distdoctor's own recording: prefix digests outlast the ring buffer of calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.collectives import GroupCalls, Track
from distdoctor.diagnosis.finding import LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording

KEPT = 6  # calls, of twelve, in the recordings below


@check("DD131", "forgotten-divergence", severity=WARNING, live=False, family="hang")
def examine(verdict: Verdict) -> Iterator[Finding]:
    parted = {id(divergence.group) for divergence in verdict.divergences}
    for group in verdict.facts.groups:
        if id(group) not in parted:
            yield from _forgotten(group)


def _forgotten(group: GroupCalls) -> Iterator[Finding]:
    """The group's ranks by what their digests say of the last call that all of them still hold."""
    tracks = [track for track in group.tracks.values() if track.count]
    if len(tracks) < 2:
        return
    first, last = max(track.first for track in tracks), min(track.count for track in tracks)
    if first <= 1 or first > last or not _are_equal(tracks, first, last):
        return
    sides: dict[int, list[int]] = {}
    for track in tracks:
        digest = track.prefix_at(last)
        if digest is None:
            return
        sides.setdefault(digest, []).append(track.rank)
    if len(sides) > 1:
        yield _finding(group, tracks, first, sorted(sides.values(), key=lambda ranks: (-len(ranks), ranks)))


def _are_equal(tracks: list[Track], first: int, last: int) -> bool:
    """Whether all calls that everybody still holds have equal signatures, and none is torn."""
    known = None
    for track in tracks:  # the rows of one rank at a time: those of a hundred thousand do not fit
        rows = track.rows
        span = rows["signature"][(rows["number"] >= first) & (rows["number"] <= last)]
        known = span if known is None else known
        if len(span) != last - first + 1 or (span != known).any():
            return False
    return True


def _finding(group: GroupCalls, tracks: list[Track], first: int, sides: list[list[int]]) -> Finding:
    odd = tuple(rank for side in sides[1:] for rank in side)
    tie = len(sides[0]) == len(sides[1])
    ranks = tuple(sorted(track.rank for track in tracks)) if tie else tuple(sorted(odd))
    call = tracks[0].call(first)
    place = call.site if call is not None else tracks[0].timeline.last_site
    who = " and ".join(named(tuple(side)) for side in sides)
    return Finding(
        title=f"{who} issued different collectives on {group.words} before #{first}, which are no longer on record",
        ranks=ranks,
        confidence=LIKELY,
        place=place,
        places=(Place(place, ranks, f"the oldest call on record, #{first}"),),
        evidence={"group": group.name, "oldest_on_record": first, "sides": [list(side) for side in sides]},
        why=f"the digests of calls #1-#{first} differ between {who}; all later calls are the same, so no rank hung, and "
        "the ranks have held different numbers ever since",
        prescriptions=(Prescription("watch-from-the-start"),),
    )


def sick() -> Recording:
    return _long_job(odd="max")


def healthy() -> Recording:
    """The same job, in which every rank sums."""
    return _long_job(odd="sum")


def _long_job(odd: str) -> Recording:
    script = recording(ranks=3)
    for step in range(12):
        script.collective("all_reduce", [32], reduce_op="sum", site="train.py:41 reduce_loss")
        if step == 2:
            script.instead(1, reduce_op=odd)
        script.step()
    found = script.finished()
    ranks = {
        rank: replace(log, calls=log.calls[-KEPT:], lost={**log.lost, "calls": len(log.calls) - KEPT})
        for rank, log in found.ranks.items()
    }
    return replace(found, ranks=ranks)
