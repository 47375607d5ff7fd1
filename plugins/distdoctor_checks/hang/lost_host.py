"""
DD132 lost-host: a host of the job has given no sign of life for seconds: its launcher, the machine or the way to it is gone.

What it means    Each launcher says again and again that it is there, through the job's own rendezvous store: every second among
                 15 hosts, less often among more; there all are called when ranks have come to rest for longer than usual. One of
                 them has stopped without saying goodbye, or has not answered. If the ranks of that host still
                 take part in collectives, only its launcher has gone: they train on, and nobody watches, restarts or ends them.
Why it hurts     The other hosts wait for ranks that will not come, or see "connection closed by peer" and look for a bug in the
                 training. Ranks without a launcher keep their devices and ports when the job has ended. With the launcher
                 that holds the job's store the whole job ends: torch's launchers on the other hosts cannot go on without it.
How we know      The last sign of life is older than the interval and 2.5 seconds while the store answers, no answer came to a
                 call within 2.5 seconds, or the store itself has not answered for so long. A collective that waits for its
                 members and has come back since shows that the ranks are alive. A launcher says when its ranks have ended: a
                 store that closes all connections before that was lost with it. From one side a cut link looks like a dead
                 host, so this is never certain.
What to do       Look at that host (is it up, was the launcher killed, `dmesg`) and at the network between the two. End ranks
                 that live on by hand before the job is started again.
When it is fine  A launcher that came to its end, or a job that was ended from outside: then hosts go one after the other.
Source           torch.distributed.elastic.rendezvous: keep-alives are sent every 5 s, and three may be missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.lost_hosts import LostHosts
from distdoctor.diagnosis.finding import ERROR, LIKELY, WARNING, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.ending import VANISHED
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording
from distdoctor.testing.rank_trace import SECOND

LAUNCHERS_END_WITH_THE_STORE = "torch ends the launchers of the other hosts, and their ranks, when the store is gone"
LEAVING_SECONDS = 10.0  # a job that is ended from outside goes host by host


@check("DD132", "lost-host", severity=ERROR, family="hang", stalls=Stalls.MAYBE, specificity=1)
def examine(hosts: LostHosts, verdict: Verdict | None) -> Iterator[Finding]:
    for seen in hosts.by_host(LEAVING_SECONDS if hosts.interrupted else 0.0):
        yield _finding(hosts, seen, verdict)


def _finding(hosts: LostHosts, seen: Sequence[LostHost], verdict: Verdict | None) -> Finding:
    """Of one host, as one or several others saw it."""
    lost = max(seen, key=lambda one: (hosts.were_met_since(one), hosts.others_go_on(one)))
    ended_the_job = lost.launcher_ended and hosts.failed
    alive = hosts.were_met_since(lost) and not ended_the_job
    going_on = alive or (hosts.others_go_on(lost) and not ended_the_job)
    silent = f"{lost.host} has given no sign of life for {lost.seconds:.0f} s"
    return Finding(
        title=_title(lost, silent, alive=alive, going_on=going_on) if not ended_the_job else _without_launcher(lost),
        ranks=lost.ranks,
        severity=WARNING if going_on else ERROR,
        confidence=LIKELY,
        stalls=Stalls.NO if going_on else Stalls.MAYBE,
        evidence={
            "host": lost.host,
            "silent_seconds": round(lost.seconds, 1),
            "seen_by": lost.seen_by,
            "ranks_alive": alive,
            "keeps_store": lost.keeps_store,
            "launcher_ended": lost.launcher_ended,
        },
        why=f"{_as_seen(lost, len(seen) - 1)}; "
        + (_what_shows(lost, alive=alive, going_on=going_on) if not ended_the_job else LAUNCHERS_END_WITH_THE_STORE),
        prescriptions=(
            Prescription("look-at-the-host", change=f"look at {lost.host}: {_what_to_look_for(lost, alive)}"),
        ),
        explains=() if going_on else tuple(_explained(verdict, lost)),
    )


def _title(lost: LostHost, silent: str, *, alive: bool, going_on: bool) -> str:
    is_one = len(lost.ranks) == 1
    if alive:
        return f"{'trains on without its' if is_one else 'train on without their'} launcher: the one on {silent}"
    if going_on:
        return f"may be lost, or without {'its' if is_one else 'their'} launcher: {silent}, while other ranks go on"
    return f"{'is' if is_one else 'are'} lost, or cut off from {lost.seen_by}: {silent}"


def _without_launcher(lost: LostHost) -> str:
    its = "its" if len(lost.ranks) == 1 else "their"
    return f"lost {its} launcher: the one on {lost.host} ended without a word, and the job's store with it"


def _as_seen(lost: LostHost, more: int) -> str:
    seen = f"as {lost.seen_by}{f' and {more} more hosts' if more > 1 else ' and another host' if more else ''} saw it"
    if lost.launcher_ended:
        return f"{seen}; {lost.host} answers, but nobody listens at the port of the job's store any more"
    return f"{seen}; the job's store is on that host, too" if lost.keeps_store else seen


def _what_shows(lost: LostHost, *, alive: bool, going_on: bool) -> str:
    who = named(lost.ranks)
    if alive:
        return f"collectives with {who} have come back since, so the ranks live"
    if going_on:
        return f"no collective on record waited for {who} since"
    return f"no collective with {who} has come back since"


def _what_to_look_for(lost: LostHost, alive: bool) -> str:
    if alive:
        return f"its launcher was killed; {named(lost.ranks)} must be ended by hand when the job is over"
    if lost.launcher_ended:
        return f"what ended its launcher (`dmesg`, the scheduler's log)? Where {named(lost.ranks)} live on, end them by hand"
    return f"is it up, does {lost.seen_by} reach it, was its launcher killed (`dmesg`)"


def _explained(verdict: Verdict | None, lost: LostHost) -> Iterator[str]:
    """Peers that were gone, ranks that others wait for or whose end nobody saw, where all of them lived there, and a call that
    all have entered, which needs the way to that host."""
    for incident in verdict.incidents if verdict is not None else ():
        has_vanished = incident.ending is not None and incident.ending.how == VANISHED
        is_absence = incident.kind is IncidentKind.ABSENT or (incident.kind is IncidentKind.FAILED and has_vanished)
        is_absence = is_absence and set(incident.ranks) <= set(lost.ranks)
        is_between = incident.kind is IncidentKind.TOGETHER and bool(set(incident.ranks) & set(lost.ranks))
        if incident.kind is IncidentKind.ECHOED or is_absence or is_between:
            yield incident.key


def _with(found: Recording, silent_for: float) -> Recording:
    """The same job, in which host node1 with ranks 2-3 fell silent so long before it was read."""
    now = found.job.read_at_ns
    machine = found.ranks[0].machine
    lost = LostHost("node1", (2, 3), "node0", machine, now - int(silent_for * SECOND), now)
    here = {rank: log for rank, log in found.ranks.items() if rank < 2}
    return replace(found, job=replace(found.job, lost=(lost,)), ranks=here)


def _job() -> Recording:
    script = recording(ranks=4)
    for _ in range(6):
        script.collective("all_reduce", [8], site="train.py:41 train_step").step()
    found = script.live(silent_for=8.0)
    return replace(found, job=replace(found.job, hosts=2))


def sick() -> Recording:
    return _with(_job(), 8.0)


def healthy() -> Recording:
    """Both hosts were heard to the end."""
    return _job()
