"""
DD129 timeout-too-short: a group's timeout ended the job while one rank was busy with work of its own.

What it means    Ranks gave up waiting for a rank that was not communicating: it was tokenizing, saving, evaluating or
                 compiling. It may well have arrived later.
Why it hurts     Hours of work end with a communication error, although communication works.
How we know      The waiting ranks raised a timeout, and the calls of all ranks agree. The late rank was in a checkpoint, an
                 evaluation or a compilation (likely), came to the same call after they had given up (likely), or the timeout
                 was below two minutes (possible), where torch's defaults are 10 to 30. Where the wait is on no record (a key
                 of the store), the others ran until they were ended. In a job's log, a progress bar that somebody still drew
                 when others gave up in a barrier (possible).
What to do       Give the group a longer timeout, or do the work before the group is created.
When it is fine  Never: a rank that is really stuck is found without a short timeout.
Source           torch.distributed.init_process_group(timeout=...), monitored_barrier(timeout=...).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, LIKELY, POSSIBLE, Finding, Place, Prescription
from distdoctor.diagnosis.hang.in_logs import LogFacts, from_line, who
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at, by_site, seconds, short
from distdoctor.diagnosis.source.given_values import given_at
from distdoctor.recording.clue import Clue
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording
from distdoctor.recording.trace.events import LongPhase
from distdoctor.testing import recording

# torch's own are 10 min (NCCL) and 30 min (gloo); who gave a group less than this did not think of saving or tokenising.
SHORT_TIMEOUT_SECONDS = 120.0


@check("DD129", "timeout-too-short", severity=ERROR, family="hang", specificity=10, at_most=LIKELY)
def examine(verdict: Verdict | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None and log.busy is not None:
        yield _still_busy(log, log.busy)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.ABSENT):
        silence = incident.silence
        if silence is not None and silence.timed_out and (silence.phase or silence.seconds < SHORT_TIMEOUT_SECONDS):
            yield _finding(verdict, incident)
    for incident in verdict.of_kind(IncidentKind.GAVE_UP):
        yield _unrecorded(verdict, incident)


def _still_busy(log: LogFacts, bar: Clue) -> Finding:
    """Whoever drew the bar had not come to the barrier in which others gave up."""
    waited = list(log.timeouts.values()) or log.unnumbered
    waiting = sorted({clue.rank for clue in waited if clue.rank >= 0})
    work = f"{bar.numbers[0]} of {bar.numbers[1]} of {f'`{bar.operation}`' if bar.operation else 'its work'}"
    limit = f" for {seconds(waited[0].numbers[1] / 1000)}" if waited[0].numbers[1] else ""
    barrier = waited[0].operation == "BARRIER" or waited[0].numbers[2] == 1
    gave_up = f"{named(waiting) if waiting else 'others'} gave up waiting in {'a barrier' if barrier else 'an all_reduce'}{limit}"
    return from_line(
        bar,
        f"was at {work} when {gave_up}" if bar.rank >= 0 else f"{gave_up} while a rank was at {work}",
        who(bar),
        POSSIBLE,
        "it was still drawing its progress bar"
        + ("; a barrier of NCCL is an all_reduce of one element" if barrier else ""),
        Prescription(
            "raise-the-timeout",
            change="do that work before init_process_group, or pass that a longer timeout (a trainer's ddp_timeout)",
        ),
        specificity=25,
    )


def _unrecorded(verdict: Verdict, incident: Incident) -> Finding:
    """The wait was no call of a group: a key of the store, most often."""
    first = incident.ending
    assert first is not None
    waiting = sorted((first.rank, *(one.rank for one in incident.also)))
    words = " ".join(first.words.split())[:160]
    seen = [(verdict.timeline(rank).last_site, rank) for rank in incident.ranks]
    have = "has" if len(incident.ranks) == 1 else "have"
    return Finding(
        title=f"had not come yet when {named(waiting)} gave up waiting: {words}",
        ranks=incident.ranks,
        confidence=POSSIBLE,
        place=first.site,
        places=(
            Place(first.site, tuple(waiting), "gave up waiting here"),
            *(Place(site, (rank,), "last seen here") for site, rank in seen if site),
        ),
        evidence={"exception": first.words, "waiting_ranks": waiting, "traceback": first.traceback},
        why=f"no rank was lost: {named(incident.ranks)} {have} run until the launcher ended the job, in no call of a group, "
        "so the wait was shorter than their work, or for something that they never do",
        prescriptions=(
            Prescription(
                "raise-the-timeout",
                change=f"raise the timeout of the wait at {at(first.site)}, or look at what {named(incident.ranks)} "
                "does instead",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    silence = incident.silence
    assert silence is not None
    waiting = sorted({call.rank for wait in incident.waiting for call in wait.calls if call.rank not in incident.ranks})
    calls = [call for wait in incident.waiting for call in wait.calls if call.rank in waiting]
    late = [call for wait in incident.waiting for call in wait.calls if call.rank in incident.ranks]
    if late:
        return _too_late(verdict, incident, calls, late)
    place = next((verdict.timeline(rank).last_site for rank in incident.ranks), calls[0].site)
    doing = f"in {_WORDS.get(silence.phase, silence.phase)}" if silence.phase else "busy with work of its own"
    limit = seconds(silence.seconds)
    return Finding(
        title=f"was {doing} when {named(waiting)} gave up waiting for it after {limit}: the timeout ended the job",
        ranks=incident.ranks,
        confidence=LIKELY if silence.phase else POSSIBLE,
        place=place,
        places=(*by_site(verdict, calls), Place(place, incident.ranks, "last seen here"), *_given(verdict, calls[0])),
        evidence={"timeout_seconds": round(silence.seconds, 1), "phase": silence.phase, "waiting_ranks": waiting},
        why=f"{named(incident.ranks)} issued nothing after {at(place)}, and the calls of all ranks agree up to there; a group "
        f"with a timeout of {limit} takes any longer pause for a hang",
        prescriptions=(_raised(incident.ranks, silence.seconds),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _too_late(verdict: Verdict, incident: Incident, waited: list[Call], late: list[Call]) -> Finding:
    """They came to the call when the others had given it up."""
    assert incident.silence is not None
    waited_for = incident.silence.seconds
    waiting, limit = sorted({call.rank for call in waited}), seconds(waited_for)
    given_up = min(ending.at_ns for ending in verdict.endings.values() if ending.timed_out)
    after = min(verdict.timeline(call.rank).wall(call.entered_ns) for call in late) - given_up
    return Finding(
        title=f"came to {short(late[0])} only after {named(waiting)} had given up waiting there for {limit}: "
        "the timeout ended the job",
        ranks=incident.ranks,
        confidence=LIKELY,
        place=late[0].site,
        places=(
            *by_site(verdict, waited),
            *by_site(verdict, late, f"came {seconds(after / 1e9)} later"),
            *_given(verdict, waited[0]),
        ),
        evidence={"timeout_seconds": round(waited_for, 1), "phase": "", "waiting_ranks": waiting},
        why=f"the calls of all ranks agree, and {named(incident.ranks)} came in the end, later than the group's timeout allows",
        prescriptions=(_raised(incident.ranks, waited_for),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _given(verdict: Verdict, call: Call) -> Iterator[Place]:
    """Where the group got its timeout."""
    groups = [one for one in verdict.timeline(call.rank).log.group_list() if one.name == call.group]
    for site, text in given_at(verdict.recording.sources, groups[-1].made_at, "timeout") if groups else ():
        yield Place(site, (), f"gives the group its timeout: `{text}`")


def _raised(ranks: tuple[int, ...], waited_for: float) -> Prescription:
    longer = max(30, 2 * math.ceil(waited_for / 60))
    return Prescription(
        "raise-the-timeout",
        change=f"raise the timeout from {seconds(waited_for)}, for example timeout=timedelta(minutes={longer}), or do the "
        f"work of {named(ranks)} before init_process_group",
    )


_WORDS = {"checkpoint": "a checkpoint", "evaluation": "an evaluation", "compile": "a compilation"}


def _saving(survivors_wait: bool) -> Recording:
    script = recording(ranks=2)
    for _ in range(4):
        script.collective("all_reduce", [8], site="train.py:41 train").step()
    script.note(LongPhase("checkpoint"), 0, site="train.py:55 save")
    if not survivors_wait:
        return script.collective("barrier", site="train.py:57 save").finished()
    return script.stays(0).collective("barrier", site="train.py:57 save").finished(survivors="time out")


def sick() -> Recording:
    return _saving(survivors_wait=True)


def healthy() -> Recording:
    """The checkpoint is done before anybody gives up."""
    return _saving(survivors_wait=False)
