"""A recording: what each rank of a job did, as values in memory, wherever it came from.

The probe's traces, a flight recorder dump and a test's builder all end up here; checks see nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.source_line import SourceLine as SourceLine
from distdoctor.recording.trace.events import KIND_AT, Kind, TraceEvent, decode
from distdoctor.recording.trace.layout import DTYPES, RECORDS, STREAMS, CallFlag, Op, PassFlag, ReduceOp, ranks_of
from distdoctor.recording.trace.process_key import ProcessKey
from distdoctor.recording.trace.reader import Rows, dtype_of

if TYPE_CHECKING:
    from distdoctor.recording.clue import Clue
    from distdoctor.recording.comparison import Comparison
    from distdoctor.recording.flight.backend_state import BackendState
    from distdoctor.recording.preflight import Preflight
    from distdoctor.recording.ras_report import RasReport
    from distdoctor.recording.replay import Replay
    from distdoctor.recording.resumption import Resumption
    from distdoctor.recording.seen_live import SeenLive
    from distdoctor.recording.stacks import Stacks
    from distdoctor.recording.states import StateSnapshot
    from distdoctor.recording.trace.sample_bitmap import KeptFile


ASK_TO_END = frozenset({1, 2, 15})  # signals that ask a process to end: SIGHUP, SIGINT, SIGTERM


@dataclass(frozen=True)
class Group:
    """A process group. `name` is equal on all members, `ranks` are global and in group order."""

    name: str
    ranks: tuple[int, ...]
    backend: str = ""
    made_at: SourceLine = SourceLine()  # noqa: RUF009 - a frozen value


@dataclass(frozen=True)
class Call:
    """One operation of one rank, decoded. Times are nanoseconds on the rank's monotonic clock; 0: has not happened."""

    rank: int
    seq: int  # 1, 2, ... per rank
    group: str
    number: int  # 1, 2, ... per group; point to point: per (group, peer, direction)
    op: Op
    dtype: str
    shape: str
    reduce_op: ReduceOp
    root: int  # global rank of root or peer, -1 for none or any
    tag: int
    nbytes: int
    flags: CallFlag
    site: SourceLine
    step: int
    entered_ns: int
    returned_ns: int
    signature: int
    line_recorded: bool = True  # else the line is that at which somebody saw the rank wait

    @property
    def is_async(self) -> bool:
        return bool(self.flags & CallFlag.ASYNC)

    @property
    def words(self) -> str:
        """`all_reduce #128`."""
        return f"{self.op.word} #{self.number}"


@dataclass(frozen=True)
class RankEnd:
    """How the process of one rank ended, as whoever watched it saw it.

    `exit_code` is the process's own (0-255), None while unknown; `signal` is the number that killed it, 0 for none.
    `ended_by_launcher`: the launcher or distdoctor sent that signal because of another rank. `kernel_kills`: how many processes
    the kernel had just killed for lack of memory, by the file `kernel_counter`: of the rank's cgroup, or /proc/vmstat of its
    host; None: not known. `memory_limit`: bytes, of the cgroup that was short of memory; 0: none was, or it is not known.
    `last_line`: where it was seen from outside when memory ran low, for `SourceLine.parse`, `last_line_ns` before its end.
    """

    exit_code: int | None
    signal: int = 0
    ended_by_launcher: bool = False
    at_ns: int = 0  # monotonic of the rank's host, of a job log the seconds that torchrun writes; 0: unknown
    kernel_kills: int | None = None
    memory_limit: int = 0
    kernel_counter: str = ""
    last_line: str = ""
    last_line_ns: int = 0

    @property
    def killed_for_memory(self) -> bool:
        """The kernel's out-of-memory killer was at work when it died of SIGKILL."""
        return self.signal == 9 and not self.ended_by_launcher and bool(self.kernel_kills)


@dataclass(frozen=True)
class RankTrace:
    """One rank's rows. Arrays have the fields of `layout.CALL`, `GROUP`, `STEP`, `EVENT`, `PASS`, `BLOCK`; ids refer to `texts`.

    `monotonic_to_wall_ns` added to any time of this rank gives the wall clock of its host.
    """

    rank: int
    calls: Rows
    groups: Rows
    steps: Rows
    events: Rows
    passes: Rows
    blocks: Rows
    texts: tuple[str, ...]
    lost: Mapping[str, int] = field(default_factory=dict)
    pid: int = 0
    host: str = ""
    attempt: int = 0
    process: ProcessKey = ProcessKey()  # noqa: RUF009 - a frozen value
    world_size: int = 0  # as the rank found it, 0: not known
    monotonic_to_wall_ns: int = 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Rows] = field(default_factory=dict)
    drawn_sets: Mapping[int, KeptFile] = field(default_factory=dict)  # of long passes, by the `seq` of their record
    seen_at: Mapping[int, SourceLine] = field(
        default_factory=dict
    )  # by `seq`: lines of calls that a copied stack shows
    unsealed: bool = False  # its job is over, and no launcher noted a checksum of it: damage to it would not be seen

    @property
    def machine(self) -> str:
        """Whose clock its times are of: the kernel that it ran on, as far as that is known."""
        return self.process.machine or self.host

    @property
    def loader_passes(self) -> Rows:
        """Without what wrapped models were given where there is no loader."""
        given = (self.passes["flags"] & PassFlag.GIVEN) != 0
        return self.passes[~given] if given.any() else self.passes

    def rows(self, name: str) -> Rows:
        """A section that only some recordings have (`layout.MORE_RINGS`); empty in the others."""
        return self.more[name] if name in self.more else no_rows(name)

    def text(self, number: int) -> str:
        return self.texts[number] if 0 <= number < len(self.texts) else ""

    def site(self, number: int) -> SourceLine:
        return SourceLine.parse(self.text(int(number)))

    def call(self, row: Any) -> Call:
        """One row of `calls` in words."""
        seen = self.seen_at.get(int(row["seq"])) if self.seen_at else None
        return Call(
            rank=self.rank,
            seq=int(row["seq"]),
            group=self.text(int(row["group"])),
            number=int(row["number"]),
            op=_member(Op, int(row["op"]), Op.UNKNOWN),
            dtype=DTYPES[int(row["dtype"])] if int(row["dtype"]) < len(DTYPES) else "",
            shape=self.text(int(row["shape"])),
            reduce_op=_member(ReduceOp, int(row["reduce_op"]), ReduceOp.UNSEEN),
            root=int(row["root"]),
            tag=int(row["tag"]),
            nbytes=int(row["nbytes"]),
            flags=CallFlag(int(row["flags"])),
            site=seen or self.site(row["site"]),
            step=int(row["step"]),
            entered_ns=int(row["entered_ns"]),
            returned_ns=int(row["returned_ns"]),
            signature=int(row["signature"]),
            line_recorded=seen is None,
        )

    def noted(self, kind: type[Kind]) -> Iterator[Kind]:
        """The events of one kind, in order; their `at_ns` is monotonic."""
        for row in self._events_by_kind.get(kind.number, ()):
            yield decode(kind, row, self.texts)

    def has_noted(self, *kinds: type[TraceEvent]) -> bool:
        return any(kind.number in self._events_by_kind for kind in kinds)

    @cached_property
    def _events_by_kind(self) -> dict[int, list[tuple[int, ...]]]:
        """kind -> its rows, in order, as plain numbers: nearly every check asks for some."""
        found: dict[int, list[tuple[int, ...]]] = {}
        for row in self.events.tolist():
            found.setdefault(row[KIND_AT], []).append(row)
        return found

    def group_list(self) -> list[Group]:
        """The process groups that this rank made, in order."""
        return [
            Group(
                self.text(int(row["key"])),
                ranks_of(self.text(int(row["members"]))),
                self.text(int(row["backend"])),
                self.site(row["made_at"]),
            )
            for row in self.groups
        ]


def _member(kind: Any, value: int, otherwise: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        return otherwise


def no_rows(name: str) -> Rows:
    """An empty section, for rank logs made by hand."""
    return np.empty(0, dtype_of(RECORDS[name]))


@dataclass(frozen=True)
class Attempt:
    """One start of the job's ranks. `number` counts the starts, alike on every host. `ranks` are those of which a launcher is
    known to have started them, `ends` how those ended whose end was seen."""

    number: int
    world_size: int = 0
    ranks: tuple[int, ...] = ()
    ends: Mapping[int, RankEnd] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What is known about the job as a whole. `world_size` 0: unknown. `ends` holds the ranks whose end was seen.

    `attempt` is the number of the start that was recorded here, `earlier` are those before it: the launcher restarted the ranks.
    `interrupted`: the signal that ended the job from outside (a time limit, preemption, Ctrl-C), 0 for none; `interrupted_ns`:
    when it came, on the monotonic clock of the launcher's host, 0: not known. `hosts`: on how many hosts a launcher should be,
    0: not known.

    `running`: the job was alive when the recording was read. `read_at_ns`: when that was, on the monotonic clock of the host
    that read it (0: not read live); `read_wall_ns`: the same moment on its wall clock (0: not noted). `end_unseen`: it is over,
    and whoever would have noted its end was gone before. `lost`: hosts that fell silent while it ran. `started`: the ranks that
    the launchers which were read of have started; (): not known.
    """

    argv: tuple[str, ...] = ()
    world_size: int = 0
    ends: Mapping[int, RankEnd] = field(default_factory=dict)
    running: bool = False
    read_at_ns: int = 0
    read_wall_ns: int = 0
    exit_code: int | None = None
    launcher: str = ""
    strategy: str = ""
    attempt: int = 0
    earlier: tuple[Attempt, ...] = ()
    interrupted: int = 0
    interrupted_ns: int = 0
    hosts: int = 0
    end_unseen: bool = False
    lost: tuple[LostHost, ...] = ()
    started: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trouble:
    """Something that distdoctor itself could not do. `rank` -1: no rank in particular.

    `silenced` are the streams in which the recorder of that rank fell silent before the rank ended: what they do not hold may
    have happened all the same. `fault`: why nothing of that rank could be read, "torn" (its trace is cut off) or "unreadable".
    """

    what: str
    rank: int = -1
    silenced: frozenset[str] = frozenset()
    fault: str = ""


@dataclass(frozen=True)
class Recording:
    """What was seen of a job. `streams` are the names that were recorded; a stream that is not in it is not *healthy*, it is
    *not examined*. `sources` holds lines of user files around the sites, when they could be read: path -> text. `stacks` are
    what `hang-dump` saw of the processes, None when nobody looked. `clues` are what the lines of a plain job log give away.
    `backend` is what torch's flight recorder said of each rank when it was asked while the job ran.
    `comparison` holds the gradients against a baseline, where `check-grads --against` has measured them,
    `resumption` what a resumed job draws, where `check-data --resume` has compared it.
    `unread` are the ranks whose traces lie there and were left alone: another host reads those.
    `states` are what training was made of when it began and was saved, `earlier_states` the same of earlier runs, and
    `earlier_runs` the recordings, by the names of their folders, of those that saved weights with which this one began."""

    job: Job
    ranks: Mapping[int, RankTrace]
    streams: frozenset[str] = STREAMS
    troubles: tuple[Trouble, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    stacks: Stacks | None = None
    clues: tuple[Clue, ...] = ()
    backend: Mapping[int, BackendState] = field(default_factory=dict)
    comparison: Comparison | None = None
    resumption: Resumption | None = None
    replay: Replay | None = None  # a resumed run beside the uninterrupted one, where `check-resume` has compared them
    states: tuple[StateSnapshot, ...] = ()
    earlier_states: tuple[StateSnapshot, ...] = ()
    earlier_runs: Mapping[str, Recording] = field(default_factory=dict)
    ras: RasReport | None = None  # what NCCL's RAS says, where it was asked or all that is left
    preflight: Preflight | None = None  # what the machine and empty ranks on it have shown, where nothing was trained
    derived: dict[type[Any], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # kind -> the fact
    seen_live: tuple[SeenLive, ...] = ()  # what was seen and said from outside while the job ran
    unread: frozenset[int] = frozenset()

    @property
    def world_size(self) -> int:
        """As the launcher knows it, else as the ranks found it."""
        found = max((log.world_size for log in self.ranks.values()), default=0)
        return self.job.world_size or max(found, max(self.ranks, default=-1) + 1)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of which no recording was read."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.ranks)
