"""
DD120 handle-not-waited: an async call is not waited for before its result is used, or before what it sends is changed.

What it means    dist.all_reduce(x, async_op=True) returns before x is reduced; only handle.wait() tells when it is. Here the
                 handle was dropped without wait(), or the tensor of an isend was written to before anybody waited.
Why it hurts     No error, no hang: code that reads x sees it partly reduced or not reduced at all, differently in each run.
                 Code that changes x too early changes what the other ranks receive.
How we know      The probe follows each handle that a line of the user's code receives (from the second handle on, if no module
                 of the program mentions async_op or irecv). The handle was freed before anyone called wait, is_completed,
                 get_future or synchronize on it. A line is reported if none of its handles was ever waited for, or if it
                 dropped more than one. Of what an operation only reads (on the CPU), elements are compared between its issue
                 and the first time that its handle is asked.
What to do       Keep the handle and call wait() before reading or writing the tensor again, or omit async_op.
When it is fine  Handles that libraries keep to themselves; sends; barriers; a loop's last, unused prefetch; a rank that ended
                 with an exception. With NCCL, torch.cuda.synchronize() also waits, so the confidence is only "possible" there.
Source           torch.distributed, "Synchronous and asynchronous collective operations".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.finding import ERROR, LIKELY, POSSIBLE, Finding, Place, Prescription
from distdoctor.diagnosis.hang.played import comes_through_waiting
from distdoctor.diagnosis.hang.wording import at
from distdoctor.diagnosis.source.statement_edits import waited_for
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import UncaughtException
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.testing import recording


@dataclass
class Line:
    """What became of the handles that one line got, over all ranks. `dropped`: how many on each rank."""

    dropped: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    asked: int = 0
    first: Call | None = None
    changed: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # of what was on its way, on each rank
    first_changed: Call | None = None
    synchronised_elsewhere: bool = False  # a device's stream can be waited for without the handle

    @property
    def is_habit(self) -> bool:
        """Whether this line drops its handles, rather than leaving over its last one."""
        return bool(self.dropped) and (not self.asked or max(self.dropped.values()) > 1)


@check("DD120", "handle-not-waited", severity=ERROR, stands_alone=True, at_most=LIKELY)
def examine(calls: Collectives) -> Iterator[Finding]:
    lines: dict[SourceLine, Line] = defaultdict(Line)
    backends = {group.name: group.backend for group in calls.groups}
    for log in calls.recording.ranks.values():
        if not _failed(log, calls.recording):
            _collect(log, lines, backends)
    for site, line in lines.items():
        if site and line.is_habit and line.first is not None:
            yield _finding(site, line, line.first, calls)
        if site and line.first_changed is not None:
            yield _changed(site, line, line.first_changed)


def _failed(log: RankTrace, recording: Recording) -> bool:
    """An exception on its way out drops what the frames held: that is no habit of the line."""
    end = recording.job.ends.get(log.rank)
    raised = log.has_noted(UncaughtException)
    return raised or (end is not None and bool(end.exit_code or end.signal))


def _collect(log: RankTrace, lines: dict[SourceLine, Line], backends: dict[str, str]) -> None:
    rows = log.calls[(log.calls["flags"] & CallFlag.ASYNC) != 0]
    asked = (rows["waited_ns"] != 0).tolist()
    dropped = ((rows["flags"] & CallFlag.DROPPED) != 0).tolist()
    changed = ((rows["flags"] & CallFlag.CHANGED) != 0).tolist()
    for row, was_asked, was_dropped, was_changed in zip(rows, asked, dropped, changed, strict=True):
        if not (was_asked or was_dropped):
            continue
        line = lines[log.site(row["site"])]
        line.asked += was_asked
        if was_changed:
            line.changed[log.rank] += 1
            line.first_changed = line.first_changed or log.call(row)
        if was_dropped:
            line.dropped[log.rank] += 1
            if line.first is None:
                line.first = log.call(row)
                line.synchronised_elsewhere = "nccl" in backends.get(line.first.group, "")


def _finding(site: SourceLine, line: Line, first: Call, calls: Collectives) -> Finding:
    edits = waited_for(calls.recording.sources, site, first.op.word) if comes_through_waiting(calls, site) else ()
    ranks, count = tuple(sorted(line.dropped)), sum(line.dropped.values())
    waited = f"; {line.asked} other handles of this line were waited for" if line.asked else ""
    return Finding(
        title=f"{named(ranks)} dropped the handle of {first.op.word} without waiting for it, {count} times",
        ranks=ranks,
        confidence=POSSIBLE if line.synchronised_elsewhere else LIKELY,
        place=site,
        places=(Place(site, ranks, f"{first.op.word} {first.shape}, async_op=True"),),
        evidence={"dropped": dict(sorted(line.dropped.items())), "waited_for": line.asked, "first": first.words},
        why=f"the tensor is used before its result has arrived{waited}",
        prescriptions=(
            Prescription(
                "wait-for-the-handle",
                change=f"keep the handle that {first.op.word} at {at(site)} returns; call .wait() on it before using the tensor",
                edits=edits,
            ),
        ),
    )


def _changed(site: SourceLine, line: Line, first: Call) -> Finding:
    ranks, count = tuple(sorted(line.changed)), sum(line.changed.values())
    word = first.op.word
    return Finding(
        title=f"{named(ranks)} wrote to the tensor that {word} was still reading, before waiting for it, {count} times",
        ranks=ranks,
        confidence=LIKELY,
        place=site,
        places=(Place(site, ranks, f"{word} {first.shape}, not yet waited for"),),
        evidence={"changed": dict(sorted(line.changed.items())), "waited_for": line.asked, "first": first.words},
        why="elements had other values when its handle was first asked than when the call was issued: what arrives depends on "
        "how far the transfer had come",
        prescriptions=(
            Prescription(
                "wait-for-the-handle",
                change=f"call .wait() on the handle of {word} at {at(site)} before writing to its tensor, or give it a copy "
                "(x.clone())",
            ),
        ),
    )


def sick() -> Recording:
    script = recording(ranks=2)
    for _ in range(4):
        script.collective(
            "all_reduce", [8], asynchronous=True, flags=CallFlag.DROPPED, site="train.py:41 average"
        ).step()
    return script.finished()


def healthy() -> Recording:
    """The last prefetch of a loop is left over; all others were waited for."""
    script = recording(ranks=2)
    for _ in range(3):
        script.collective("broadcast", [8], asynchronous=True, waited_ns=1, site="train.py:41 prefetch").step()
    script.collective("broadcast", [8], asynchronous=True, flags=CallFlag.DROPPED, site="train.py:41 prefetch")
    return script.finished()
