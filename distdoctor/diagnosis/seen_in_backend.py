"""Everybody in the same call, told from the stacks alone: nobody is missing, and it does not complete."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.finding import POSSIBLE, Cure, Finding
from distdoctor.diagnosis.standing import Doing, Standing
from distdoctor.diagnosis.standstill import Standstill
from distdoctor.recording.layout import Op
from distdoctor.recording.rank_set import named


def seen_in_backend(standstill: Standstill) -> Iterator[Finding]:
    """Only possible, never likely: a rank that is a call behind looks the same from outside."""
    standings = list(standstill.standings.values())
    calls = {(s.call, s.site, _numbers(s)) for s in standings}
    together = len(calls) == 1 and all(s.doing in (Doing.COLLECTIVE, Doing.BACKWARD, Doing.HANDLE) for s in standings)
    alone = len(standings) + len(standstill.stacks.elsewhere) < 2
    if alone or not together or standings[0].op in (Op.SEND, Op.RECV):
        return
    if not standstill.exceeds_patience(standstill.waited_seconds):
        return
    elsewhere, first = standstill.stacks.elsewhere, standings[0]
    whom = "all ranks of this host" if elsewhere else "all"
    what = "wait for the same handle" if first.doing is Doing.HANDLE else f"are in {first.call or 'the same call'}"
    yield Finding(
        title=f"{whom} {what}{standstill.how_long(first)}, and it does not complete",
        ranks=tuple(s.rank for s in standings),
        confidence=POSSIBLE,
        place=first.site,
        places=standstill.places(),
        evidence={
            "operation": first.call,
            "waited seconds": standstill.waited_seconds,
            "ranks on other hosts": list(elsewhere),
        },
        why=_why(elsewhere, first.doing is Doing.HANDLE),
        cures=(
            Cure("record-the-job", change="start it with distdoctor run, which names the first call that differs"),
            Cure("gather-backend-evidence"),
        ),
    )


def _why(elsewhere: tuple[int, ...], by_handle: bool) -> str:
    if elsewhere:
        return (
            f"{named(elsewhere)} would be on other hosts, and the cause may be there: run distdoctor hang-dump on each"
        )
    if by_handle:
        return (
            "nobody is missing; which operations the handles are of the stacks do not show: another one on one rank looks the "
            "same (distdoctor run records them)"
        )
    return "nobody is missing; whether one rank is a call behind the stacks do not show (distdoctor run records it)"


def _numbers(standing: Standing) -> tuple[tuple[str, str], ...]:
    """The arguments that can be compared between processes: numbers, not addresses."""
    return tuple((k, v) for k, v in sorted(standing.arguments.items()) if v.lstrip("-").isdigit())
