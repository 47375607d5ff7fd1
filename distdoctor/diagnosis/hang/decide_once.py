"""What to do where ranks answered a question of the source each for itself: in words, and as an edit by which they vote."""

from __future__ import annotations

import re

from distdoctor.diagnosis.finding import Prescription
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at
from distdoctor.diagnosis.source.decided_together import decided_together
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.layout import CallFlag

_REDUCED_TO_ONE = re.compile(r"\b(dist|distributed)\.reduce\(|\breduce\([^)]*\bdst\b")


def decide_once(verdict: Verdict, incident: Incident) -> Prescription | None:
    """The remedy for the condition that most likely let the ranks part; None where it is no question, or is about the rank."""
    decision = incident.decision
    if decision is None or not decision.decides_alone:
        return None
    if decision.cuts_the_graph:
        return Prescription(
            "run-on-every-rank",
            change=f"where `{decision.test}` ({at(decision.site)}), give back what is computed from the input (`x * 0`, or the "
            "module run on no rows), so that backward goes the same way on every rank",
        )
    if (reduced := reduced_for_all(decision)) is not None:
        return reduced
    if decision.stops_a_framework and decision.comes_from_the_rank:
        return Prescription(
            "decide-once",
            change=f"have the loop stopped on every rank: `{decision.test}` ({at(decision.site)}) lets one rank alone come to "
            "what stops it; keep only that rank's output under it, or broadcast the decision",
        )
    if decision.asks_for_the_rank and decision.call:
        return Prescription(
            "call-on-every-rank",
            change=f"call what {at(decision.call)} calls on every rank: take it out of `{decision.test}` ({at(decision.site)})",
        )
    return Prescription(
        "decide-once",
        change=f"decide once for all ranks: all_reduce or broadcast what `{decision.test}` tests before {at(decision.site)}",
        edits=voted(verdict, incident, decision.site, decision.question),
    )


def reduced_for_all(decision: Decision | None) -> Prescription | None:
    """The remedy where each rank decides by what `reduce` left with it; None for another decision."""
    if decision is None or not decision.way or not _REDUCED_TO_ONE.search(decision.way[-1][1]):
        return None
    return Prescription(
        "decide-once",
        change=f"call all_reduce instead of reduce at {at(decision.way[-1][0])}: only its destination has the sum of all, "
        f"and each rank answers `{decision.test}` ({at(decision.site)}) by what it has",
    )


def as_many_turns(incident: Incident, loop: Decision) -> Prescription:
    """What to do where ranks go through loops of different lengths. join() answers for the reductions of a wrapped model only."""
    of_model = any(call is not None and call.flags & CallFlag.NATIVE for call in (incident.odd, incident.usual))
    why = f", which depends on `{loop.way[-1][1]}` ({at(loop.way[-1][0])})" if loop.way else ""
    return Prescription(
        "join-uneven-inputs" if of_model else "call-on-every-rank",
        change=f"give every rank as many turns of `{loop.test}` ({at(loop.site)}){why}: cut what it goes through to one length "
        "on all ranks, or let them agree on the shortest before the loop",
    )


def voted(verdict: Verdict, incident: Incident, site: SourceLine, test: str) -> tuple[Edit, ...]:
    """The condition answered by all ranks alike, where what it comes from is nothing that only a rank of this number has.

    Up to the number where they parted the calls of the group agree. Only if it is the group of all ranks is it known of every
    rank that it comes to the condition between the same calls.
    """
    decision, group = incident.decision, incident.group
    if group is None or set(group.members) != set(range(verdict.recording.world_size)):
        return ()
    same = decision is not None and (decision.site.path, decision.site.line) == (site.path, site.line)
    if decision is None or not same or decision.comes_from_the_rank:
        return ()
    calls = [call.site for call in (incident.odd, incident.usual) if call is not None]
    return decided_together(verdict.recording.sources, site, test, calls)
