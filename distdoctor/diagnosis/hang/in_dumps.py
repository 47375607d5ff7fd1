"""What dumps say about a job that stands still, in words: the host that stopped, the device that is stuck, the ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Confidence, Finding, Place, Prescription
from distdoctor.diagnosis.hang.device_progress import Absence, DeviceProgress, Jam, StoppedDevice, StuckCall
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import SourceLine

ON_THE_HOST = (
    "look at what {who} did after the last call: distdoctor hang-dump shows the stack while the job runs, and what `py-spy dump` "
    "printed of each rank is read where it lies beside the dumps"
)
MOST_CALLS = 8  # named in the evidence
UNDATED = (
    "; the files' times are those of a copy, so nothing shows that the job stood still and was not on its way "
    "(copy with cp -p, scp -p or rsync -t)"
)


def hosts_that_stopped(progress: DeviceProgress, verdict: Verdict | None) -> Iterator[Finding]:
    """Ranks whose device has done all that it was given, and whose host does not issue what the others wait for: those that
    are missed in one call together."""
    alike: dict[tuple[str, int], list[Absence]] = {}
    for absence in progress.absences if _nothing_better(progress, verdict) else ():
        if absence.at is None:
            alike.setdefault((absence.call.words, absence.last), []).append(absence)
    for absences in alike.values():
        yield _absent(absences, progress, verdict)


def hosts_that_went_elsewhere(progress: DeviceProgress, verdict: Verdict | None) -> Iterator[Finding]:
    """Ranks that have not issued what most of a group waits in, and are in another call."""
    for absence in progress.absences if _nothing_better(progress, verdict) else ():
        if absence.at is not None:
            yield _elsewhere(absence, progress, verdict)


def devices_that_stopped(progress: DeviceProgress, verdict: Verdict | None) -> Iterator[Finding]:
    """Ranks whose device has not completed what it completed on others; else calls that everybody is in."""
    if not _nothing_better(progress, verdict):
        return
    if progress.stopped:
        yield _stopped(list(progress.stopped.values()), progress, verdict)
    elif not progress.absences and not progress.rings and not progress.unseen:
        alike: dict[tuple[str, str], list[Jam]] = {}
        for jam in progress.jams:
            key = (jam.call.pending.words, "" if jam.odd else jam.call.group.description)
            alike.setdefault(key if key[1] else (jam.call.group.name, str(jam.ranks)), []).append(jam)
        for first, *others in alike.values():
            yield _jammed(first, others, progress, verdict)


def groups_taken_differently(progress: DeviceProgress, verdict: Verdict | None) -> Iterator[Finding]:
    """Groups of one name for which ranks that count each other in have other members."""
    for name, lots in progress.memberships.items() if nothing_better(verdict) else ():
        yield _taken_differently(name, lots, progress)


def _taken_differently(name: str, lots: Mapping[tuple[int, ...], tuple[int, ...]], progress: DeviceProgress) -> Finding:
    (_, most), *others = lots.items()
    odd = tuple(sorted(rank for _, ranks in others for rank in ranks))
    tied = len(others[0][1]) == len(most)
    group = next(iter(progress.groups[name].values()))
    said = "; ".join(f"{named(ranks)}: {list(members)}" for members, ranks in list(lots.items())[:MOST_CALLS])
    return Finding(
        title=f"disagree on the members of {group.words}, in which calls are pending"
        if tied
        else f"made {group.words} with other members than the rest, and calls in it are pending",
        ranks=tuple(sorted({*odd, *most})) if tied else odd,
        confidence=LIKELY,
        evidence={"group": group.words, "members": {named(ranks): list(members) for members, ranks in lots.items()}},
        why=f"the ranks' own lists of its members differ ({said}), so each waits for ranks that are in another communicator",
        prescriptions=(
            Prescription(
                "new-group-on-every-rank",
                change="make all groups on every rank, in one order, from one list of members that does not depend on the rank",
            ),
        ),
        undecided=tied,
    )


def nothing_better(verdict: Verdict | None) -> bool:
    """Whether the calls in the dumps tell nothing themselves: where the ranks' calls differ, that is the cause."""
    return verdict is None or not verdict.incidents


def _nothing_better(progress: DeviceProgress, verdict: Verdict | None) -> bool:
    """Whether nothing tells why ranks do not meet but how far each has come."""
    return nothing_better(verdict) and not progress.memberships


def _absent(absences: Sequence[Absence], progress: DeviceProgress, verdict: Verdict | None) -> Finding:
    first, ranks = absences[0], tuple(absence.rank for absence in absences)
    who, call, alone = named(ranks), first.call, len(ranks) == 1
    issued = f"issued up to #{first.last} of that group" if first.last >= 0 else "not posted its part"
    has, its = ("has", "its device has") if alone else ("have", "their devices have")
    return Finding(
        title=f"did not reach {call.words}, and {its} nothing left to do: the others wait for "
        f"{'its host' if alone else 'their hosts'}",
        ranks=ranks,
        confidence=_confidence(progress),
        place=_last_place(verdict, first.rank),
        places=(
            *(
                Place(_last_place(verdict, rank), (rank,), "last seen here, then nothing")
                for rank in ranks[:MOST_CALLS]
            ),
            *_places(verdict, [call], first.waiting),
        ),
        evidence={
            "waited_for": call.pending.words,
            "group": call.group.words,
            "last_enqueued": first.last,
            "waiting_ranks": list(first.waiting),
        },
        why=_why(
            progress,
            f"{named(first.waiting)} {'has' if len(first.waiting) == 1 else 'have'} enqueued it, {who} {has} {issued} and {has} "
            f"completed all that {'it' if alone else 'they'} enqueued; only {'its stack shows' if alone else 'stacks show'} what "
            f"{'its host does' if alone else 'their hosts do'} (a lock, the GIL, a loader)",
        ),
        prescriptions=(Prescription("bound-the-wait", change=ON_THE_HOST.format(who=who)),),
    )


def _elsewhere(absence: Absence, progress: DeviceProgress, verdict: Verdict | None) -> Finding:
    call, at = absence.call, absence.at
    assert at is not None
    return Finding(
        title=f"skipped {call.words} and went on to {at.words}",
        ranks=(absence.rank,),
        confidence=POSSIBLE,
        place=_place(verdict, at),
        places=_places(verdict, [at, call]),
        evidence={"skipped": call.words, "went_on_to": at.words, "waiting_ranks": list(absence.waiting)},
        why=_why(
            progress,
            f"{named(absence.waiting)} wait in {call.words}: most of the group has reached it, rank {absence.rank} has not",
        ),
        prescriptions=(Prescription("call-on-every-rank", change=f"call {call.words} on rank {absence.rank} as well"),),
    )


def _stopped(found: Sequence[StoppedDevice], progress: DeviceProgress, verdict: Verdict | None) -> Finding:
    found = sorted(found, key=lambda one: one.call.rank)
    first = found[0]
    others = "; ".join(
        f"rank {one.call.rank} has not completed {one.call.words}, which {named(one.completed_by)} completed"
        + (f" (its host has enqueued {one.ahead} more)" if one.ahead else "")
        for one in found[:MOST_CALLS]
    )
    return Finding(
        title=f"its device is stuck at {first.call.words}, which completed on {named(first.completed_by)}"
        if len(found) == 1
        else f"their devices are stuck; rank {first.call.rank}'s at {first.call.words}, completed on {named(first.completed_by)}",
        ranks=tuple(one.call.rank for one in found),
        confidence=_confidence(progress) if _are_apart(found, progress) else POSSIBLE,
        place=_place(verdict, first.call),
        places=_places(verdict, [one.call for one in found]),
        evidence={"stands_at": {f"rank {one.call.rank}": one.call.words for one in found[:MOST_CALLS]}},
        why=_why(progress, others),
        prescriptions=(
            Prescription(
                "gather-backend-evidence",
                change=f"look at the GPU of {named(one.call.rank for one in found)}: dmesg for Xid, nvidia-smi -q, "
                "NCCL_DEBUG=INFO; the other ranks are waiting for it",
            ),
        ),
    )


def _jammed(jam: Jam, others: Sequence[Jam], progress: DeviceProgress, verdict: Verdict | None) -> Finding:
    """`others`: the same call of groups of the same kind, as of all pipelines that lead through one link."""
    whom = f"rank {jam.odd[0]}: {jam.how}" if jam.odd else "the dumps do not show which device is stuck"
    ranks = tuple(sorted({rank for one in (jam, *others) for rank in one.ranks}))
    more = f" (and so in {len(others)} more group{'s' if len(others) > 1 else ''} of its kind)" if others else ""
    return Finding(
        title=f"is stuck at {jam.call.words}: {jam.how}"
        if jam.odd
        else f"have all entered {jam.call.words}{more}, and it was not complete when the dumps were written",
        ranks=jam.odd or ranks,
        confidence=POSSIBLE,
        place=_place(verdict, jam.call),
        places=_places(verdict, [jam.call], ranks),
        evidence={"operation": jam.call.words, "members": list(ranks), "groups": 1 + len(others)},
        why=_why(progress, f"{named(ranks)} have all enqueued it and none has completed it; {whom}"),
        prescriptions=(Prescription("gather-backend-evidence"),),
    )


def _why(progress: DeviceProgress, words: str) -> str:
    missing = progress.unseen
    unseen = f"; {named(missing)} left no usable dump and may also be a cause" if missing else ""
    return words + unseen + (UNDATED if progress.is_undated else "")


def _confidence(progress: DeviceProgress) -> Confidence:
    """A dump that was taken while the job moved shows calls under way as well."""
    return LIKELY if progress.stood_long and not progress.unseen else POSSIBLE


def _are_apart(found: Sequence[StoppedDevice], progress: DeviceProgress) -> bool:
    """Whether it is a few devices, more than a call behind: members do not complete a call in one instant, nor are their dumps
    written in one."""
    return 2 * len(found) <= len(progress.states) and any(one.behind > 1 for one in found)


def _places(verdict: Verdict | None, calls: Sequence[StuckCall], ranks: Sequence[int] = ()) -> tuple[Place, ...]:
    found = [
        Place(_place(verdict, call), tuple(ranks) or (call.rank,), f"in {call.words}") for call in calls[:MOST_CALLS]
    ]
    return tuple(found)


def _place(verdict: Verdict | None, call: StuckCall | None) -> SourceLine:
    """The user's line of a pending call, where the dumps have stacks."""
    if verdict is None or call is None or call.rank not in verdict.facts.timelines:
        return SourceLine()
    log = verdict.timeline(call.rank).log
    rows = log.calls[log.calls["entered_ns"] == call.pending.created_ns] if call.pending.created_ns else log.calls[:0]
    return log.call(rows[0]).site if len(rows) else SourceLine()


def _last_place(verdict: Verdict | None, rank: int) -> SourceLine:
    known = verdict is not None and rank in verdict.facts.timelines
    return verdict.timeline(rank).last_site if verdict is not None and known else SourceLine()
