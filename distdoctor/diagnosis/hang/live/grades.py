"""Where ranks stand of which nobody copied a stack: in the call that their dump holds as not complete, that NCCL's RAS says they
have launched before others, or that the log says they gave up waiting in. A stack says more, so it goes before a dump, a dump
before RAS, and RAS before a log."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.diagnosis.hang.in_logs import LogFacts, call_in
from distdoctor.diagnosis.hang.in_ras import ahead
from distdoctor.diagnosis.hang.live.rank_activity import Activity, Grade, RankActivity
from distdoctor.recording.called_functions import OPERATIONS
from distdoctor.recording.clue import ClueKind
from distdoctor.recording.flight.backend_state import Pending
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.stacks import RankStacks


def waiting_without_stacks(recording: Recording) -> dict[int, RankActivity]:
    """By rank, as dumps, NCCL's RAS or a log beside copied stacks tell."""
    return {one.rank: one for one in (*_by_log(recording), *_by_ras(recording), *_by_dumps(recording))}


def _by_dumps(recording: Recording) -> Iterator[RankActivity]:
    progress = DeviceProgress.in_dumps(recording)
    if progress is None or progress.moved_on:
        return
    for rank, front in progress.fronts.items():
        site = _line_of(recording.ranks.get(rank), front.pending)
        yield _waiting(rank, Grade.DUMP, site, front.pending.operation, f"waits in {front.words}")


def _line_of(log: RankTrace | None, pending: Pending) -> SourceLine:
    if log is None or not pending.created_ns:
        return SourceLine()
    rows = log.calls[log.calls["entered_ns"] == pending.created_ns]
    return log.call(rows[0]).site if len(rows) else SourceLine()


def _by_ras(recording: Recording) -> Iterator[RankActivity]:
    for rank, told in ahead(recording.ras).items() if recording.ras is not None else ():
        yield _waiting(rank, Grade.RAS, SourceLine(), "", told)


def _by_log(recording: Recording) -> Iterator[RankActivity]:
    try:
        log = derived(LogFacts, recording)
    except NotApplicable:
        return
    for clue in (*log.lines(ClueKind.WAITED), *log.unnumbered, *log.timeouts.values()):
        if clue.rank >= 0:
            what = call_in(clue) if clue.kind is ClueKind.TIMED_OUT else "a call"
            yield _waiting(clue.rank, Grade.LOG, clue.site, clue.operation.lower(), f"gave up waiting in {what}")


def _waiting(rank: int, grade: Grade, site: SourceLine, call: str, told: str) -> RankActivity:
    return RankActivity(
        rank,
        Activity.COLLECTIVE,
        RankStacks(rank, None),
        site=site,
        call=call,
        op=OPERATIONS.get(call),
        grade=grade,
        told=told,
    )
