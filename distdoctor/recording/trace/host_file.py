"""What each launcher of a job writes down, in a file of its own: who it is, each start of its ranks, and how these ended.

A job on many hosts has one `host-<id>.json` for each launcher, so none of them overwrites another's. They are put together when
they are read.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import LARGEST_JSON, read_json
from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.recording import Attempt, Job, RankEnd
from distdoctor.recording.trace.layout import MOST_RANKS
from distdoctor.recording.trace.process_key import ProcessKey

PATTERN = "host-*.json"
TORCH_ELASTIC = "torch elastic"  # the launcher that knows its ranks before they show themselves
_ONLY_WITH_COUNTERS = ("kernel_kills", "memory_limit", "kernel_counter", "last_line", "last_line_ns")


@dataclass(frozen=True)
class HostFile:
    """One launcher. `starts`: number of the attempt -> that start of its own ranks. `hosts` is how many launchers the job should
    have (0: not known), `task` the number of this one where a scheduler started them all (-1: none did). `interrupted` is the
    signal from outside that ended it, 0 for none."""

    process: ProcessKey
    argv: tuple[str, ...] = ()
    launcher: str = ""
    strategy: str = ""
    streams: tuple[str, ...] | None = None
    hosts: int = 0
    running: bool = True
    exit_code: int | None = None
    interrupted: int = 0
    starts: Mapping[int, Attempt] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)  # of its ranks' traces by name, once the ranks have ended
    lost: tuple[LostHost, ...] = ()  # in the newest start
    task: int = -1

    @property
    def name(self) -> str:
        """The name of its file, which no other launcher shares."""
        key = self.process
        return f"host-{re.sub(r'[^A-Za-z0-9.-]+', '_', key.host) or 'unknown'}-{key.machine[:6]}-{key.pid}-{key.started}.json"

    @property
    def still_runs(self) -> bool:
        """Whether the launcher had not come to its end; one of this machine must also be there."""
        return self.running and (not self.process.is_of_this_machine or self.process.lives_here)

    def takes_part(self, attempt: int) -> bool:
        """Whether it belongs to that start: not a launcher that has been replaced, nor one of a job that ran here before."""
        return attempt in self.starts or (not self.starts and self.still_runs)

    def to_json(self) -> str:
        """Its text, with a checksum of all that it says."""
        fields = self._fields()
        return json.dumps({**fields, "check": check_of(fields)}, indent=1)

    def _fields(self) -> dict[str, Any]:
        return {
            "process": vars(self.process),
            "argv": list(self.argv),
            "launcher": self.launcher,
            "strategy": self.strategy,
            "streams": None if self.streams is None else list(self.streams),
            "hosts": self.hosts,
            "running": self.running,
            "exit_code": self.exit_code,
            "interrupted": self.interrupted,
            "starts": [_start_fields(start) for _, start in sorted(self.starts.items())],
            "digests": dict(self.digests),
            "lost": [vars(host) for host in self.lost],
            "task": self.task,
        }


def check_of(fields: Mapping[str, Any]) -> str:
    """The checksum of what a launcher says, whatever the order of its fields."""
    return f"{zlib.crc32(json.dumps(fields, sort_keys=True).encode()):08x}"


def _start_fields(start: Attempt) -> dict[str, Any]:
    return {
        "attempt": start.number,
        "world_size": start.world_size,
        "ranks": list(start.ranks),
        "ends": ends_fields(start.ends),
    }


def ends_fields(ends: Mapping[int, RankEnd]) -> dict[str, dict[str, Any]]:
    """How ranks ended, for JSON."""
    return {str(rank): _end_fields(end) for rank, end in sorted(ends.items())}


def _end_fields(end: RankEnd) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(end).items()
        if end.kernel_kills is not None or name not in _ONLY_WITH_COUNTERS
    }


Ranks = Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS)]
Exit = Annotated[int, msgspec.Meta(ge=-255, le=0xFFFFFFFF)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class EndFields(msgspec.Struct):
    """A rank's end in a file; what a newer distdoctor wrote besides is left out."""

    exit_code: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)] | None
    signal: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    ended_by_launcher: bool = False
    at_ns: _Count = 0
    kernel_kills: _Count | None = None
    memory_limit: _Count = 0
    kernel_counter: str = ""
    last_line: str = ""
    last_line_ns: _Count = 0


class _StartFields(msgspec.Struct):
    attempt: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
    world_size: Ranks
    ranks: list[Ranks]
    ends: dict[Ranks, EndFields]


class _HostFields(msgspec.Struct):
    """A launcher's file; a value that none writes makes the whole file damaged."""

    process: ProcessKey
    argv: list[str] = []
    launcher: str = ""
    strategy: str = ""
    streams: list[str] | None = None
    hosts: Ranks = 0
    running: bool = True
    exit_code: Exit | None = None
    interrupted: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    starts: list[_StartFields] = []
    digests: dict[str, str] = {}
    lost: list[LostHost] = []
    task: Annotated[int, msgspec.Meta(ge=-1, le=MOST_RANKS)] = -1


def ends_of(found: Mapping[int, EndFields]) -> dict[int, RankEnd]:
    """The other way."""
    return {rank: RankEnd(**msgspec.structs.asdict(end)) for rank, end in found.items()}


def read_host_file(path: Path) -> HostFile | None:
    """None for what is torn, or no such file."""
    try:
        return host_from(read_json(path, LARGEST_JSON))
    except UnreadableRecording:
        return None


def host_from(content: Any) -> HostFile | None:
    """A launcher from the parsed JSON, None for anything else, and for what is not as it was written."""
    if isinstance(content, dict) and "check" in content:  # older ones have none
        content = dict(content)
        if content.pop("check") != check_of(content):
            return None
    try:
        found = msgspec.convert(content, _HostFields, str_keys=True)
    except (msgspec.ValidationError, UnicodeEncodeError):  # texts that no file can hold: halves of surrogate pairs
        return None
    starts = [Attempt(one.attempt, one.world_size, tuple(one.ranks), ends_of(one.ends)) for one in found.starts]
    return HostFile(
        found.process,
        tuple(found.argv),
        found.launcher,
        found.strategy,
        None if found.streams is None else tuple(found.streams),
        found.hosts,
        found.running,
        found.exit_code,
        found.interrupted,
        {start.number: start for start in starts},
        found.digests,
        tuple(found.lost),
        found.task,
    )


def read_host_files(folder: Path) -> list[HostFile]:
    """All launchers that have written into this folder."""
    found = [read_host_file(path) for path in sorted(folder.glob(PATTERN))]
    return [host for host in found if host is not None]


def job_from(hosts: Iterable[HostFile], attempt: int | None = None) -> Job | None:
    """The job that these launchers make up, in one of its attempts (the newest when None). None without any launcher."""
    found = list(hosts)
    if not found:
        return None
    numbers = sorted({number for host in found for number in host.starts})
    newest = attempt if attempt is not None else max(numbers, default=0)
    merged = {number: _merged([h.starts[number] for h in found if number in h.starts]) for number in numbers}
    now = merged.get(newest, Attempt(newest))
    found = [host for host in found if host.takes_part(newest)] or found
    codes = [host.exit_code for host in found if host.exit_code is not None]
    first = found[0]
    return Job(
        argv=first.argv,
        world_size=now.world_size,
        ends=now.ends,
        running=any(host.still_runs for host in found) and newest == max(numbers, default=0),
        exit_code=max(codes, key=abs, default=None) if newest == max(numbers, default=0) else None,
        launcher=first.launcher,
        strategy=first.strategy,
        attempt=newest,
        earlier=tuple(merged[number] for number in numbers if number < newest),
        interrupted=max((host.interrupted for host in found), default=0),
        hosts=max((host.hosts for host in found), default=0),
        end_unseen=any(host.running and not host.still_runs for host in found),
        lost=still_lost(
            (lost for host in found for lost in host.lost), (h.process.host for h in found if not h.running)
        ),
        started=_started(found, now),
    )


def _started(hosts: Sequence[HostFile], start: Attempt) -> tuple[int, ...]:
    """The ranks that these launchers have started; (): not known. Only torch's own launcher knows its ranks before they show
    themselves. Where some launchers of the job have left nothing here, ranks that nobody here saw are theirs; of one for each
    rank, each has the rank with its number."""
    if all(host.launcher == TORCH_ELASTIC for host in hosts):
        return start.ranks
    wanted = max(host.hosts for host in hosts)
    if len(hosts) >= wanted:
        return ()
    world = start.world_size or wanted  # 0: the job was over before its launcher had looked at a trace
    tasks = {host.task for host in hosts if host.task >= 0} if wanted == world else set()
    return tuple(sorted({*start.ranks, *tasks}))


def still_lost(lost: Iterable[LostHost], ended: Iterable[str]) -> tuple[LostHost, ...]:
    """Each lost host once, as it was seen last; not those of which the launcher came to an end of its own."""
    newest = {(one.host, one.seen_by): one for one in sorted(lost, key=lambda one: one.noticed_ns)}
    back = set(ended)
    return tuple(one for one in newest.values() if one.host not in back)


def _merged(starts: list[Attempt]) -> Attempt:
    """One start of the whole job, from what each launcher says of its own ranks."""
    ends: dict[int, RankEnd] = {}
    for start in starts:
        ends = merged_ends(ends, start.ends)
    ranks = sorted({rank for start in starts for rank in start.ranks})
    return replace(starts[0], world_size=max(start.world_size for start in starts), ranks=tuple(ranks), ends=ends)


def merged_ends(known: Mapping[int, RankEnd], news: Mapping[int, RankEnd]) -> dict[int, RankEnd]:
    """The ends from two sources; who saw how a rank ended wins over who only saw that it did."""
    unseen = {rank for rank, end in news.items() if end.exit_code is None and not end.signal and rank in known}
    return {**known, **{rank: end for rank, end in news.items() if rank not in unseen}}
