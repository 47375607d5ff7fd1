"""What the training of a rank was made of when it began, and when it was saved; and the same of earlier runs of the program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import read_bytes
from distdoctor.recording.source_line import SourceLine
from distdoctor.recording.trace.state_file import LARGEST_BYTES, SAVE, START, parse_name

MOST_RANKS = 64  # of one run that are read: replicas are alike, and an illness of one in a thousand shows elsewhere
MOST_RUNS = 16  # beside this one that are looked at, the newest first
Digest = Annotated[str, msgspec.Meta(max_length=16)]


class Document(msgspec.Struct, frozen=True):
    """One file, as `probe.checkpoints.snapshots` writes it."""

    when: str
    step: int
    wall_ns: int
    world_size: int
    program: str
    site: str
    paths: list[str]
    sharded: bool
    fits: str
    numbers: dict[str, float]
    schedule: str
    rng: list[str]
    resumes: bool
    digests: dict[str, dict[str, Digest]]
    holds_schedule: bool = False  # of a save: the state of a learning rate scheduler is in it
    holds_copies: bool = False  # of a save: a copy of the model that no optimizer trains is in it
    looks: dict[str, dict[str, Digest]] = {}  # of a start: backward pass -> what the user's own objects held before it
    weights_at: dict[str, dict[str, Digest]] = {}  # the same of the weights, in a script that steps by itself


@dataclass(frozen=True)
class StateSnapshot:
    """The state of one rank at one moment of a run. Of what is not in `digests` nothing is known."""

    rank: int
    attempt: int
    run: str  # the name of the run's folder
    document: Document

    @property
    def site(self) -> SourceLine:
        return SourceLine.parse(self.document.site)

    def digests(self, kind: str) -> Mapping[str, str]:
        """name -> digest."""
        return self.document.digests.get(kind, {})


def snapshots_in(folder: Path) -> tuple[StateSnapshot, ...]:
    """Every one in a run folder that can be read, in the order of their times."""
    found = []
    for path in _files(folder):
        rank, attempt, _ = parse_name(path.name) or (0, 0, 0)
        if rank >= MOST_RANKS:
            continue
        try:
            document = msgspec.json.decode(read_bytes(path, LARGEST_BYTES), type=Document)
        except (UnreadableRecording, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        found.append(StateSnapshot(rank, attempt, folder.name, document))
    return tuple(sorted(found, key=lambda one: (one.document.wall_ns, one.rank)))


def earlier_snapshots(folder: Path, own: tuple[StateSnapshot, ...]) -> tuple[StateSnapshot, ...]:
    """Those of earlier runs of the same program beside this one, that end with a save. Only asked where this run has begun."""
    starts = [one.document for one in own if one.document.when == START]
    if not starts:
        return ()
    programs, began = {one.program for one in starts}, min(one.wall_ns for one in starts)
    found: list[StateSnapshot] = []
    for run in _runs_beside(folder):
        its = [one for one in snapshots_in(run) if one.document.program in programs and one.document.wall_ns < began]
        if any(one.document.when == SAVE for one in its):
            found += its
    return tuple(found)


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if parse_name(path.name)]
    except OSError:
        return []


def _runs_beside(folder: Path) -> Iterator[Path]:
    """Other folders with such files, the newest first."""
    try:
        beside = [path for path in folder.resolve().parent.iterdir() if path.is_dir() and not path.is_symlink()]
        times = {path: path.stat().st_mtime_ns for path in beside if path.name != folder.resolve().name}
    except OSError:
        return
    runs = (path for path in sorted(times, key=lambda path: -times[path]) if _files(path))
    yield from (path for _, path in zip(range(MOST_RUNS), runs, strict=False))
