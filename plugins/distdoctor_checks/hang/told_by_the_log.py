"""
DD127 told-by-the-log: nothing was recorded, but the job's output gives away which rank is missing or which sizes differ.

What it means    Only the text that the job printed is left. gloo prints the bytes that came and those it expected, the store's
                 keys end in the rank that never arrived, NCCL's watchdog prints the operation that each rank was in.
Why it hurts     The visible error names an innocent rank: gloo aborts the receiver, torchrun blames whoever died first.
How we know      Lines of the log, quoted with their number. A rank that others wait for in the store is DD118, sizes are DD103,
                 an exception that is not about a lost peer is DD110.
What to do       Look at the rank and line that are named. Run the job again under distdoctor run for a proof.
When it is fine  Errors after the first one: they only follow from it.
Source           gloo/transport/tcp/pair.cc, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, torch 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable, check
from distdoctor.diagnosis.finding import ERROR, LIKELY, POSSIBLE, Finding, Prescription
from distdoctor.recording.job_log import LAUNCHER, Clue, ClueKind, parse_log
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording

FOLLOWS = (
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "ChildFailedError",
    "SignalException",
    "KeyboardInterrupt",
)


@dataclass(frozen=True)
class LogVerdict:
    """The fact that a plain log is all there is."""

    streams: ClassVar[frozenset[str]] = frozenset()
    recording: Recording

    @classmethod
    def of(cls, recording: Recording) -> Self:
        if recording.ranks or recording.stacks or not (recording.clues or recording.job.launcher == LAUNCHER):
            raise NotApplicable("there is no job log, or something better than one")
        return cls(recording)


@check("DD127", "told-by-the-log", severity=ERROR, family="hang", stands_alone=True)
def examine(told: LogVerdict) -> Iterator[Finding]:
    recording, clues = told.recording, told.recording.clues
    exceptions = [clue for clue in clues if clue.kind is ClueKind.EXCEPTION and not clue.words.startswith(FOLLOWS)]
    own = [clue for clue in exceptions if not clue.words.rpartition("torch.distributed.")[2].startswith(FOLLOWS)]
    finding = (
        _raised(own[0]) if own
        else next((_sizes(clue) for clue in clues if clue.kind is ClueKind.SIZES), None)
        or next(_not_arrived(clues), None) or next(_watchdog(clues), None) or next(_killed(recording), None)
        or next(_peer_gone(clues), None)
    )  # fmt: skip
    if finding is not None:
        yield finding


def _raised(clue: Clue) -> Finding:
    """An exception of the program itself."""
    return Finding(
        code="DD110",
        slug="rank-died",
        title=f"{'failed' if clue.rank >= 0 else 'a rank failed'} with {clue.words[:160]}",
        ranks=_ranks(clue),
        confidence=LIKELY,
        place=clue.site,
        evidence=_quoted(clue),
        why=f"line {clue.line_number} of the log; it is the first error that is not about a lost peer",
        prescriptions=(
            Prescription(
                "mend-the-first-failure",
                change=f"mend the {clue.words.partition(':')[0]}; the other errors follow from it",
            ),
        ),
    )


def _sizes(clue: Clue) -> Finding:
    came, expected = clue.numbers
    return Finding(
        code="DD103",
        slug="mismatched-shape",
        title=f"received {came} bytes where it expected {expected}: a peer issued another size or another operation",
        ranks=_ranks(clue),
        confidence=LIKELY,
        place=clue.site,
        evidence=_quoted(clue) | {"bytes came": came, "bytes expected": expected},
        why=f"line {clue.line_number} of the log; gloo aborts the receiver, which may be innocent: {came} bytes are "
        f"{came // 4} float32, {expected} are {expected // 4}",
        prescriptions=(
            Prescription(
                "same-shape", change="print the shapes of all ranks before this call, or run it under distdoctor run"
            ),
        ),
    )


def _not_arrived(clues: tuple[Clue, ...]) -> Iterator[Finding]:
    found = [clue for clue in clues if clue.kind is ClueKind.NOT_ARRIVED]
    waited_for = {number for clue in found for number in clue.numbers} - {clue.rank for clue in found}
    joined = next((clue for clue in clues if clue.kind is ClueKind.JOINED), None)
    if found and waited_for:
        ranks = tuple(sorted(waited_for))
        yield Finding(
            code="DD118",
            slug="missing-rank-at-start",
            title=f"{'has' if len(ranks) == 1 else 'have'} not come: others wait for its key in the store",
            ranks=ranks,
            confidence=LIKELY,
            place=found[0].site,
            evidence=_quoted(found[0]),
            why=f"line {found[0].line_number} of the log; the key ends in the rank within its group that never wrote it",
            prescriptions=(
                Prescription(
                    "start-every-rank",
                    change=f"find out whether {named(ranks)} was started, and what it did before init_process_group",
                ),
            ),
        )
    elif joined is not None:
        came, expected = joined.numbers
        yield Finding(
            code="DD118",
            slug="missing-rank-at-start",
            title=f"only {came} of {expected} ranks came to the store",
            confidence=LIKELY,
            evidence=_quoted(joined),
            why=f"line {joined.line_number} of the log; which ones are missing it does not say",
            prescriptions=(
                Prescription(
                    "start-every-rank", change=f"start all {expected} ranks with the same MASTER_ADDR and MASTER_PORT"
                ),
            ),
        )


def _watchdog(clues: tuple[Clue, ...]) -> Iterator[Finding]:
    """NCCL's watchdog names the operation per rank: the one behind, or in another operation, is the odd one."""
    found = {clue.rank: clue for clue in clues if clue.kind is ClueKind.TIMED_OUT and clue.rank >= 0}
    if not found:
        return
    slowest = min(found.values(), key=lambda clue: (clue.numbers[0], clue.rank))
    behind = tuple(sorted(rank for rank, clue in found.items() if clue.numbers[0] == slowest.numbers[0]))
    differ = len(behind) < len(found)
    yield Finding(
        title=f"timed out in number {slowest.numbers[0]}"
        + (", the others are further" if differ else ", all that printed anything"),
        ranks=behind,
        confidence=LIKELY if differ else POSSIBLE,
        place=slowest.site,
        evidence=_quoted(slowest),
        why=f"line {slowest.line_number} of the log; {len(found)} ranks printed their last collective",
        prescriptions=(
            Prescription(
                "record-the-job",
                change="set TORCH_FR_DUMP_TEMP_FILE, or run it under distdoctor run; then distdoctor examine",
            ),
        ),
    )


def _killed(recording: Recording) -> Iterator[Finding]:
    for rank, end in sorted(recording.job.ends.items()):
        if not end.ended_by_launcher and (end.signal or end.exit_code):
            how = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
            yield Finding(
                code="DD110",
                slug="rank-died",
                title=f"ended with {how}",
                ranks=(rank,),
                confidence=POSSIBLE if end.signal == 6 else LIKELY,  # gloo aborts innocent ranks
                why="as torchrun lists it; it names whoever ended first, which is not always the cause",
                prescriptions=(
                    Prescription(
                        "mend-the-first-failure",
                        change=f"look at the output of rank {rank}"
                        + (" and at dmesg (out of memory?)" if end.signal == 9 else ""),
                    ),
                ),
            )
            return


def _peer_gone(clues: tuple[Clue, ...]) -> Iterator[Finding]:
    found = [clue for clue in clues if clue.kind is ClueKind.PEER_GONE]
    told = {clue.rank for clue in found if clue.rank >= 0}
    if found:
        yield Finding(
            title=f"a peer has left while {named(told) if told else 'others'} still waited",
            confidence=POSSIBLE,
            place=found[0].site,
            evidence=_quoted(found[0]) | {"innocent ranks": sorted(told)},
            why=f"line {found[0].line_number} of the log; whoever printed this is not the one that left",
            prescriptions=(
                Prescription(
                    "record-the-job", change="look for a rank that printed nothing; distdoctor run would have named it"
                ),
            ),
        )


def _ranks(clue: Clue) -> tuple[int, ...]:
    return (clue.rank,) if clue.rank >= 0 else ()


def _quoted(clue: Clue) -> dict[str, object]:
    return {"line of the log": clue.line_number, "words": clue.words[:300]}


def sick() -> Recording:
    """NCCL's watchdog on three ranks, one of them a call behind."""
    lines = [
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={7 if rank == 1 else 8}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600043 ms"
        for rank in range(3)
    ]
    return parse_log("\n".join(lines))


def healthy() -> Recording:
    """A log of a job that went well."""
    return parse_log("epoch 1 loss 0.3\nepoch 2 loss 0.2\n")
