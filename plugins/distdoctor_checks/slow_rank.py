"""
DD123 slow-rank: not a hang, but the others wait for this rank.

What it means    Everybody else is in a collective, and this rank is not in any: it computes, loads, saves, or
                 evaluates.
Why it hurts     All other ranks are idle for as long as it takes; beyond the timeout of the group they fail.
How we know      Nobody has moved for five times the job's 99th percentile step, at least ten seconds, and the group
                 counts say who is missing. Whether it is stuck or slow is not in a recording: `distdoctor hang-dump`
                 looks at its stack.
What to do       Move what only this rank does off the path of the others.
When it is fine  A checkpoint of rank 0 once in a while: this is a note, never an error, while the job runs.
Source           the job's own rhythm.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, NOTE, Cure, Finding, Place
from distdoctor.diagnosis.verdict import Event, Verdict
from distdoctor.diagnosis.words import at, by_site, seconds
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


@check("DD123", "slow-rank", severity=NOTE, family="hang")
def examine(verdict: Verdict) -> Iterator[Finding]:
    for event in verdict.told("DD123"):
        yield _finding(verdict, event)


def _finding(verdict: Verdict, event: Event) -> Finding:
    silence = event.silence
    assert silence is not None
    stuck = [call for wait in event.waiting for call in wait.calls if call.rank not in event.ranks]
    waiting = named({call.rank for call in stuck})
    verb = "waits" if len({call.rank for call in stuck}) == 1 else "wait"
    sites = {rank: verdict.timeline(rank).last_site for rank in event.ranks}
    place = next((site for site in sites.values() if site), verdict.timeline(event.ranks[0]).last_site)
    phase = f", in {silence.phase}" if silence.phase else ""
    rhythm = f"; a step usually takes {seconds(silence.usual_seconds)}" if silence.usual_seconds else ""
    title = f"{waiting} {verb} for it since {seconds(silence.seconds)}: it is in no collective{phase}"
    if silence.timed_out:
        title = f"{waiting} gave up waiting for it after {seconds(silence.seconds)}: it was in no collective{phase}"
    return Finding(
        title=title,
        ranks=event.ranks,
        confidence=event.confidence,
        severity=ERROR if silence.timed_out else None,
        place=place,
        places=(
            *by_site(verdict, stuck),
            *(Place(site, (rank,), "last seen here") for rank, site in list(sites.items())[:4]),
        ),
        evidence={
            "silence_seconds": round(silence.seconds, 1),
            "usual_seconds": round(silence.usual_seconds, 3),
            "phase": silence.phase,
            "waiting_ranks": sorted({call.rank for call in stuck}),
        },
        why=f"its last call was at {at(place)}, and since then it has been in code that is no communication{rhythm}; "
        "stuck or slow shows in its stack: distdoctor hang-dump",
        cures=(Cure("balance-ranks"),),
        at_ns=event.at_ns,
    )


def _saving(silent_for: float) -> Recording:
    script = recording(ranks=4)
    for _ in range(5):
        script.collective("all_reduce", [8], site="train.py:41 train").step()
    return script.stays(0).collective("barrier", site="train.py:57 save").live(silent_for=silent_for)


def sick() -> Recording:
    return _saving(14)


def healthy() -> Recording:
    return _saving(6)
