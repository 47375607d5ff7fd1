"""How ranks ended, where what their parent saw is not the whole truth: corrected by what else is known when the job is over."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace

from distdoctor.diagnosis.hang.ending import CRASHES
from distdoctor.launch.ends import ended_from_outside
from distdoctor.launch.observed_agent import AgentEnd
from distdoctor.launch.processes import is_alive
from distdoctor.recording.recording import ASK_TO_END, RankEnd, Recording, SourceLine
from distdoctor.recording.trace.events import Exiting, UncaughtException
from distdoctor.recording.trace.layout import CallFlag, site_text


def with_line(end: RankEnd, seen: tuple[SourceLine, int] | None) -> RankEnd:
    """The end of a rank that was killed for lack of memory, with its line when memory ran low."""
    if seen is None or not end.killed_for_memory:
        return end
    site, at_ns = seen
    return replace(
        end, last_line=site_text(site.path, site.line, site.function), last_line_ns=max(0, end.at_ns - at_ns)
    )


def without_the_asked(ends: Mapping[int, RankEnd], asked: int, asked_ns: int) -> dict[int, RankEnd]:
    """The ends, where somebody has ended the job from outside by the signal `asked` (0: nobody has): no rank's own."""
    return ended_from_outside(ends, asked_ns) if asked in ASK_TO_END else dict(ends)


def ended_by_another_launcher(ends: Mapping[int, RankEnd]) -> dict[int, RankEnd]:
    """Ranks that got SIGTERM after another one had failed: every launcher does that, and none says so."""
    failures = [end.at_ns for end in ends.values() if (end.exit_code or end.signal) and end.signal != signal.SIGTERM]
    first = min(failures, default=None)
    return {
        rank: replace(end, ended_by_launcher=True)
        if first is not None and end.signal == signal.SIGTERM and end.at_ns >= first
        else end
        for rank, end in ends.items()
    }


def ended_after_their_work(ends: Mapping[int, RankEnd], recording: Recording) -> dict[int, RankEnd]:
    """The ends under a command that succeeded: a rank that was in no call and noted no end of its own was ended by its parent,
    whatever code that left. Not what a process does to itself, nor what the kernel does, nor where a call of any rank failed.
    A parent that ends its ranks ends all of them: where one of them came to a good end by itself, another's code is its own."""
    found = dict(ends)
    come_to_their_end = any(log.has_noted(Exiting) for log in recording.ranks.values())
    come_to_their_end |= any(end.exit_code == 0 and not end.ended_by_launcher for end in ends.values())
    if any((log.calls["flags"] & CallFlag.FAILED).any() for log in recording.ranks.values()):
        return found
    for rank, end in ends.items():
        log = recording.ranks.get(rank)
        if log is None or log.has_noted(Exiting) or log.has_noted(UncaughtException):
            continue
        in_call = bool(len(log.calls)) and not log.calls[-1]["returned_ns"]
        sent = bool(end.signal) and end.signal not in CRASHES and not end.killed_for_memory
        if (sent or (end.exit_code and not come_to_their_end)) and not in_call:
            found[rank] = replace(end, ended_by_launcher=True)
    return found


def with_exit_events(ends: Mapping[int, RankEnd], recording: Recording, end: AgentEnd) -> dict[int, RankEnd]:
    """The ends, completed by what the ranks themselves noted when the interpreter went down."""
    found = dict(ends)
    for rank, log in recording.ranks.items():
        known = found.get(rank)
        leaving = list(log.noted(Exiting))
        if (known is not None and (known.exit_code is not None or known.signal)) or not log.process.is_of_this_machine:
            continue
        if log.process.lives_here and is_alive(log.pid):
            continue
        if leaving:
            code = 1 if leaving[-1].after_exception else 0 if end.exit_code == 0 else None
            found[rank] = RankEnd(code, at_ns=leaving[-1].at_ns)
        elif known is None:
            found[rank] = RankEnd(None)
    return found
