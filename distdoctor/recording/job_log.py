"""What a job printed, as a last resort: the few lines of torch, gloo, NCCL and torchrun that name a rank or a size.

Words as in torch 2.11-2.15. A log proves little: gloo often aborts an innocent rank, and torchrun blames who died first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from distdoctor.errors import NothingToInspect, UnreadableRecording
from distdoctor.recording.recording import Job, RankEnd, Recording, SourceLine
from distdoctor.recording.stacks import is_users_path

LAUNCHER = "job log"
LARGEST_BYTES = 256 << 20  # of a longer log only the end is read: that is where a job says why it died


class ClueKind(StrEnum):
    """What a line of a log tells."""

    SIZES = "sizes"  # numbers: bytes that came, bytes that were expected
    NOT_ARRIVED = "not arrived"  # numbers: the group ranks that others wait for in the store
    JOINED = "joined"  # numbers: clients that came, clients that were expected
    PEER_GONE = "peer gone"
    TIMED_OUT = "timed out"  # numbers: sequence number, milliseconds
    EXCEPTION = "exception"


@dataclass(frozen=True)
class Clue:
    """One telling line. `rank` is who printed it, -1 where the log does not say; `line_number` counts from 1."""

    kind: ClueKind
    words: str
    rank: int = -1
    numbers: tuple[int, ...] = ()
    site: SourceLine = SourceLine()  # noqa: RUF009  (frozen)
    line_number: int = 0


# `[rank3]:` of torch, `[default3]:` of torchrun --tee, `3: ` of srun --label, `[1,3]<stderr>:` of mpirun --tag-output.
_RANK = re.compile(r"\[rank\s?(\d+)\]|\[default(\d+)\]:|^\s*(\d+): |^\[\d+,(\d+)\]<std", re.IGNORECASE)
_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\.?\s*(\d+) vs (\d+)")
_NOT_ARRIVED = re.compile(r"(?:keys?:?|key)\s*'?(\S*default_pg\S*?/(\d+))(?=['\s,.\]]|$)", re.IGNORECASE)
_JOINED = re.compile(r"(\d+)/(\d+) clients joined")
_PEER_GONE = re.compile(r"Connection (?:closed|reset) by peer|remote process exited|Broken pipe|ncclRemoteError")
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: Work\w*\(SeqNum=(\d+), OpType=(\w+)(?:.*?Timeout\(ms\)=(\d+))?"
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Timeout)): ?(.*)")
_ENDED_RANK = re.compile(r"^\s*rank\s*:\s*(\d+)\s*\(local_rank", re.IGNORECASE)
_ENDED_CODE = re.compile(r"^\s*exitcode\s*:\s*(-?\d+)\s*\(pid")
_STRIPPED = re.compile(r"^\s*(?:\[rank\s?\d+\]:?|\[default\d+\]:|\d+: |\[\d+,\d+\]<std\w+>:)\s?", re.IGNORECASE)


def read_log(path: Path) -> Recording:
    """What a log file tells.

    NothingToInspect: nothing that names a rank, a size or an error.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LARGEST_BYTES))
            text = file.read(LARGEST_BYTES).decode("utf-8", "replace")
    except OSError as trouble:
        raise UnreadableRecording(f"{path} cannot be read: {trouble.strerror}", way_out="Copy the log again.") from None
    recording = parse_log(text)
    if not recording.clues and not recording.job.ends:
        raise NothingToInspect(
            f"{path} is no recording, no flight recorder dump, and as a job log it names no rank and no error",
            way_out="Point at a run folder, a folder of flight recorder dumps, or the whole output of the job.",
        )
    return recording


def parse_log(text: str) -> Recording:
    """What the text of a log tells."""
    lines = text.splitlines()
    clues = tuple(_clues(lines))
    ends = dict(_ends(lines))
    joined = [clue.numbers[1] for clue in clues if clue.kind is ClueKind.JOINED]
    seen = {
        *ends,
        *(clue.rank for clue in clues),
        *(n for c in clues if c.kind is ClueKind.NOT_ARRIVED for n in c.numbers),
    }
    world = max([*joined, max(seen, default=-1) + 1])
    job = Job(world_size=world, ends=ends, launcher=LAUNCHER, exit_code=1 if ends else None)
    return Recording(job=job, ranks={}, streams=frozenset(), clues=clues)


def _clues(lines: Iterable[str]) -> Iterator[Clue]:
    sites: dict[int, SourceLine] = {}  # rank -> the innermost user line of the traceback that is being printed
    for number, line in enumerate(lines, start=1):
        rank = _rank_of(line)
        words = _STRIPPED.sub("", line)
        frame = _FRAME.search(words)
        if frame is not None:
            if is_users_path(frame[1]):
                sites[rank] = SourceLine(frame[1], int(frame[2]), frame[3])
            continue
        kind, numbers = _kind(words)
        raised = _RAISED.match(words.strip())
        if kind is None and raised is None:
            continue
        site = sites.pop(rank, SourceLine()) if raised else sites.get(rank, SourceLine())
        yield Clue(kind or ClueKind.EXCEPTION, words.strip()[:500], rank, numbers, site, number)


def _rank_of(line: str) -> int:
    match = _RANK.search(line[:200])
    return int(next(group for group in match.groups() if group)) if match else -1


def _kind(words: str) -> tuple[ClueKind | None, tuple[int, ...]]:
    found: re.Match[str] | None
    if found := _SIZES.search(words):
        return ClueKind.SIZES, (int(found[1]), int(found[2]))
    if found := _JOINED.search(words):
        return ClueKind.JOINED, (int(found[1]), int(found[2]))
    if found := _WATCHDOG.search(words):
        return ClueKind.TIMED_OUT, (int(found[1]), int(found[3] or 0))
    if _PEER_GONE.search(words):
        return ClueKind.PEER_GONE, ()
    missing = tuple(int(match[2]) for match in _NOT_ARRIVED.finditer(words))
    return (ClueKind.NOT_ARRIVED, missing) if missing else (None, ())


def _ends(lines: Iterable[str]) -> Iterator[tuple[int, RankEnd]]:
    """How torchrun says that ranks ended. It SIGTERMs whoever is left as soon as one fails."""
    rank: int | None = None
    for line in lines:
        match = _ENDED_RANK.match(_STRIPPED.sub("", line))
        if match is not None:
            rank = int(match[1])
            continue
        code = _ENDED_CODE.match(_STRIPPED.sub("", line))
        if code is not None and rank is not None:
            value = int(code[1])
            yield rank, RankEnd(None if value < 0 else value, max(0, -value), ended_by_launcher=value == -15)
            rank = None
