"""
DD123 slow-rank: a straggler: the job does not hang, but the others wait for this rank, once for long or a little in every step.

What it means    All other ranks are in a collective, and this rank is not: it computes, loads, saves or evaluates.
Why it hurts     All other ranks are idle for as long as that takes; beyond the timeout of the group they fail.
How we know      Once for long: no rank has moved for five times the job's 99th percentile step, at least ten seconds, and the
                 group counts show which rank is missing. A recording cannot tell stuck from slow; `distdoctor hang-dump` shows
                 the rank's stack. In every step: all_reduce makes the wall times equal, so only the order of arrival at the
                 collectives counts. Here one rank is last in four steps of five, by 10 % of a step or more, with a median three
                 deviations above zero or by 5 % of a step in each of these; in a short run two steps suffice if the others
                 wait more than a second and more than half of each. Now and then: one rank is late by four steps and more at
                 least three times, and the others lose 15 % of the run by that.
                 Copied stacks: it was at work in one function in all of them, and all others waited.
What to do       Move work that only this rank does off the path that the others wait for.
When it is fine  An occasional checkpoint on rank 0: while the job runs this is a note, never an error. Ranks on different hosts
                 have different clocks, so their arrivals are not compared. If another finding names the same rank, its lateness
                 is reported there. A stage of a pipeline that comes last because its messages do, and works no longer than the
                 others, is not late; nor is one that waited in a call of another group meanwhile, as leaders do among
                 themselves. A rank that stands in the queue for a core while it is late, and would be in time on a host with
                 free cores, is a note: the host is full. So is one that gets a core a third of the time or less, and works no
                 more than the others, or waits half as long again as they do for each second of its work.
Source           the job's own step times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from statistics import median

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.rank_activity import Activity
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at, by_site, seconds
from distdoctor.diagnosis.source.alone import done_alone
from distdoctor.diagnosis.speed.pauses import Pauses, pauses
from distdoctor.diagnosis.speed.restarted_workers import restarted_workers
from distdoctor.diagnosis.speed.short_runs import Straggler, straggler
from distdoctor.diagnosis.speed.timing import BETWEEN_STEPS, LATE_SHARE, MILLISECOND, Late, Timing, arrivals_of
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording

CROWDED_OUT = 0.67  # of the time in which a rank could run it stands in the queue: two others want its core as well
UNEVEN = 1.5  # times as long in the queue for each second of its work as the others
OF_THE_HOST = 0.5  # of its lateness is what a rank stood in the queue for a core, more than the others did


@check("DD123", "slow-rank", severity=NOTE, family="hang", symptom=True, stalls=Stalls.MAYBE)
def examine(
    verdict: Verdict | None, timing: Timing | None, standstill: Stall | None, sources: Sources
) -> Iterator[Finding]:
    if standstill is not None and standstill.stacks.copies and not (verdict and verdict.incidents):
        yield from _at_work_in_copies(standstill)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.ABSENT):
        yield _finding(verdict, incident)
    if verdict.incidents:
        return
    few = straggler(verdict.facts) if timing is None else None
    late = next((one for one in timing.late[:1] if timing.is_late(one)), None) if timing is not None else None
    if few is not None:
        yield _in_few_steps(few)
    elif timing is not None and late is not None:
        # Of one that waits for its data DD504 names rank and line, of the stages of a pipeline DD506.
        if not timing.is_data_bound(late.rank) and not timing.is_fed_by_messages(late.rank):
            yield _in_every_step(timing, late, sources)
    else:
        met = map(arrivals_of, verdict.facts.groups)
        now_and_then = pauses(verdict.facts, filter(None, met))
        # Of a rank that starts its loader's workers anew DD504 names the loader.
        if now_and_then is not None and not _starts_its_workers(timing, now_and_then.rank):
            yield _now_and_then(now_and_then, sources)


def _starts_its_workers(timing: Timing | None, rank: int) -> bool:
    return timing is not None and restarted_workers(timing.ranks[rank].log) is not None


def _at_work_in_copies(standstill: Stall) -> Iterator[Finding]:
    """The one rank that was at work in one function in every copied stack, while all others waited in a call."""
    working = [one for one in standstill.others if one.doing in (Activity.USER, Activity.COMPUTING)]
    if len(working) != 1 or len(standstill.others) != 1 or not standstill.waiting or standstill.is_one_moment:
        return
    one, others = working[0], [waiting.rank for waiting in standstill.waiting]
    process = one.process
    if process is None or process.lasting is None or not standstill.is_moving(one) or standstill.stacks.elsewhere:
        return
    site, copies, later = process.lasting.site, standstill.stacks.copies, standstill.stacks.later
    goes_on = f"the log goes on after the last of them (`{later[:80]}`), so the job does not hang"
    yield Finding(
        title=f"{named(others)} {'waits' if len(others) == 1 else 'wait'} for it: it was at work in {site.function} in all "
        f"{copies} copied stacks",
        ranks=(one.rank,),
        confidence=LIKELY if later else POSSIBLE,
        severity=WARNING,
        stalls=Stalls.NO,
        place=site,
        places=standstill.places(one),
        evidence={"function": site.function, "copies": copies},
        why=f"{standstill.who_waits} in all of them; "
        + (goes_on if later else "slow work and an endless loop look alike: look whether the job's steps go on"),
        prescriptions=(
            Prescription("balance-ranks", change=f"make {site.function} faster, or share its work among all ranks"),
        ),
    )


def _in_few_steps(late: Straggler) -> Finding:
    waits = "waits" if len(late.others) == 1 else "wait"
    return Finding(
        title=f"{named(late.others)} {waits} {late.wait_seconds:.1f} of {late.step_seconds:.1f} s for it in each step",
        ranks=(late.rank,),
        confidence=LIKELY if late.on_cpu else POSSIBLE,
        severity=WARNING,
        stalls=Stalls.NO,
        place=late.site,
        places=(Place(late.site, (late.rank,), "comes here last"),),
        evidence={
            "lost_seconds_per_step": round(late.wait_seconds, 3),
            "share_of_step": round(late.wait_seconds / late.step_seconds, 3),
            "steps": late.steps,
        },
        why=f"it enters the collectives last in each of {late.steps} steps, {late.wait_seconds:.1f} s after the others",
        prescriptions=(Prescription("balance-ranks", effect=f"up to {late.wait_seconds:.1f} s a step"),),
    )


def _now_and_then(one: Pauses, sources: Sources) -> Finding:
    alone = done_alone(sources.texts, one.site, one.rank, one.others)[:2]
    waits = "waits" if len(one.others) == 1 else "wait"
    rhythm = f"after every {one.every} steps" if one.every > 1 else f"in {one.count} of {one.steps} steps"
    return Finding(
        title=f"{named(one.others)} {waits} {one.total_seconds:.1f} of {one.run_seconds:.1f} s for it: "
        f"{rhythm} it comes {one.each_seconds:.1f} s late",
        ranks=(one.rank,),
        confidence=LIKELY if one.on_cpu else POSSIBLE,
        severity=WARNING,
        stalls=Stalls.NO,
        place=alone[0][0] if alone else one.site,
        places=(
            *(Place(line, (one.rank,), f"goes in here alone: `{test[:60]}`") for line, test in alone),
            Place(one.site, (one.rank,), "comes here last"),
        ),
        evidence={
            "lost_seconds": round(one.total_seconds, 2),
            "share_of_run": round(one.total_seconds / one.run_seconds, 3),
            "pauses": one.count,
            "seconds_each": round(one.each_seconds, 3),
            "every_steps": one.every,
        },
        why=f"in {one.count} steps it enters the collectives {one.each_seconds:.1f} s after the others (median), and not in the "
        "steps between: it works alone for so long",
        prescriptions=(
            Prescription(
                "balance-ranks",
                effect=f"up to {one.total_seconds:.1f} s, {one.total_seconds / one.run_seconds:.0%} of the run",
                change="let every rank do its share of that (evaluate a shard each and all_reduce the sums), do it less often, "
                "or in another process",
            ),
        ),
    )


def _in_every_step(timing: Timing, late: Late, sources: Sources) -> Finding:
    lost, step = late.step.value / MILLISECOND, timing.step_ns / MILLISECOND
    others = timing.ranks.keys() - {late.rank}
    times = timing.ranks[late.rank]
    words, more = timing.excess(late.rank)
    known = times.on_cpu and more >= 0.5 * late.step.value
    doing = f": it {words}, {more / MILLISECOND:.1f} ms longer than the others" if known else ""
    queued = timing.queued(late.rank)[0] - median(timing.queued(rank)[0] for rank in others)
    # Who works more stands in the queue more often: on a host with free cores it would be late by the rest.
    rest = late.step.value - queued
    of_the_host = _has_no_more_to_do(timing, late, others) or (
        queued >= OF_THE_HOST * late.step.value
        and (rest < LATE_SHARE * timing.step_ns or _is_crowded_out(timing, late.rank, others))
    )
    if of_the_host:
        longer = f", {queued / MILLISECOND:.1f} ms longer than the others" if queued > 0 else " as long as the others"
        doing = f": it stands in the queue for a core{longer}"
    waits = "waits" if len(others) == 1 else "wait"
    site = timing.loop_site(late.rank) if words == "waits for its data" else late.site
    elsewhere = known and words == BETWEEN_STEPS and not of_the_host
    alone = done_alone(sources.texts, late.site, late.rank, tuple(others))[:2] if elsewhere else []
    return Finding(
        title=f"{named(others)} {waits} {lost:.1f} of {step:.1f} ms for it in each step{doing}",
        ranks=(late.rank,),
        confidence=LIKELY if times.on_cpu else POSSIBLE,
        severity=NOTE if of_the_host else WARNING,
        stalls=Stalls.NO,
        place=alone[0][0] if alone else site or timing.step_site(late.rank),
        places=(
            *(Place(line, (late.rank,), f"goes in here alone: `{test[:60]}`") for line, test in alone),
            Place(late.site, (late.rank,), "comes here last"),
        ),
        evidence={
            "lost_seconds_per_step": round(lost / 1e3, 6),
            "lost_seconds": round(late.total_ns / 1e9, 2),
            "share_of_step": round(lost / step, 3),
            "deviation_ms": round(late.step.spread / MILLISECOND, 2),
            "last_in_share_of_steps": round(late.share, 3),
            "steps": late.step.count,
            "meanwhile": words if known else "",
            "queued_ms": round(queued / MILLISECOND, 1),
        },
        why=f"it enters the collectives last in {late.share:.0%} of {late.step.count} steps, "
        f"{lost * late.every:.1f} ms after the others (median, deviation {late.step.spread * late.every / MILLISECOND:.1f} ms)"
        + (f"; they meet once in {late.every} steps" if late.every > 1 else ""),
        prescriptions=(
            Prescription(
                "balance-ranks",
                effect=f"up to {lost:.1f} ms a step, {lost / step:.0%}",
                change="give every rank a core of its own: fewer processes and threads on this host"
                if of_the_host
                else "",
            ),
        ),
    )


def _is_crowded_out(timing: Timing, rank: int, others: Collection[int]) -> bool:
    """Whether it gets a core so seldom, and so much more seldom than the others, that its own threads and caches suffer as well:
    what of its lateness is not the queue's says nothing of its work then."""
    queued, share = timing.queued(rank)
    waits = [timing.queued(one)[0] / worked for one in others if (worked := timing.worked_ns(one))]
    return share >= CROWDED_OUT and bool(waits) and queued >= UNEVEN * median(waits) * timing.worked_ns(rank)


def _has_no_more_to_do(timing: Timing, late: Late, others: Collection[int]) -> bool:
    """Whether its host is full, and what it works more than the others, as long as that takes there, with all that it sleeps, is
    less than half of its lateness."""
    _, share = timing.queued(late.rank)
    worked = [worked for one in others if (worked := timing.worked_ns(one))]
    if share < CROWDED_OUT or not worked:
        return False
    more = max(0.0, timing.worked_ns(late.rank) - median(worked)) / (1 - share)
    return more + timing.off_core_ns(late.rank) < OF_THE_HOST * late.step.value


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    silence = incident.silence
    assert silence is not None
    stuck = [call for wait in incident.waiting for call in wait.calls if call.rank not in incident.ranks]
    waiting = named({call.rank for call in stuck})
    sites = {rank: verdict.timeline(rank).last_site for rank in incident.ranks}
    place = next((site for site in sites.values() if site), verdict.timeline(incident.ranks[0]).last_site)
    phase = f", in {silence.phase}" if silence.phase else ""
    rhythm = f"; a step usually takes {seconds(silence.usual_seconds)}" if silence.usual_seconds else ""
    title = f"has kept {waiting} waiting for {seconds(silence.seconds)}: it is not in any collective{phase}"
    if silence.timed_out:
        title = (
            f"was not in any collective{phase} when {waiting} gave up waiting for it after {seconds(silence.seconds)}"
        )
    return Finding(
        title=title,
        ranks=incident.ranks,
        confidence=incident.confidence,
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
        why=f"its last call was at {at(place)}, and it has not communicated since{rhythm}; "
        "its stack shows whether it is stuck or slow: distdoctor hang-dump",
        prescriptions=(Prescription("balance-ranks"),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
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
