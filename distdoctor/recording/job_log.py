"""What a job printed, as a last resort: the few lines of torch, gloo, NCCL, torchrun and the kernel that name a rank or a size.

Words as in torch 2.1-2.15. A log proves little: gloo often aborts an innocent rank, and torchrun blames who died first. The
launcher's prefix (`[rank3]:`) is the rank; torch's own `[Rank 3]` counts within the group, or is that of another one.

Every pattern runs in linear time: no two neighbouring parts of one can match the same letters, and lines are cut.
"""

from __future__ import annotations

import io
import itertools
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from distdoctor.errors import NothingToInspect, UnreadableRecording
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.fault_dumps import TELLING as FAULTS
from distdoctor.recording.fault_dumps import FaultDump, fault_dumps
from distdoctor.recording.files import opened
from distdoctor.recording.flight.dumps import NAMED_RANK
from distdoctor.recording.last_training_line import TRAINING
from distdoctor.recording.nccl_remark import remark_in
from distdoctor.recording.printed_rank import BRACKETED, PrintedRanks, printer_of, without_prefixes
from distdoctor.recording.printed_stacks import PrintedStacks
from distdoctor.recording.recording import Job, RankEnd, Recording, Trouble
from distdoctor.recording.slurm_ends import SAYS, SlurmEnds
from distdoctor.recording.source_line import SourceLine
from distdoctor.recording.stack_files import of_dumps
from distdoctor.recording.stacks import is_users_path
from distdoctor.recording.trace.layout import MOST_RANKS, ranks_of, whole_number

LAUNCHER = "job log"
OF_ALL = ("0", "default_pg", "PG 0", "PG ID 0 PG GUID 0")  # names of everybody's group in torch's lines
ENDED_BY_TIMEOUT = "torch ended it because of a timeout"
_NO_TEXT = {  # first bytes -> (what such a file is, what makes text of it)
    b"\x1f\x8b": ("packed by gzip", "zcat"), b"\x28\xb5\x2f\xfd": ("packed by zstd", "zstdcat"),
    b"\xfd7zXZ": ("packed by xz", "xzcat"), b"BZh": ("packed by bzip2", "bzcat"), b"PK\3\4": ("a zip archive", "unzip -p"),
    b"\xff\xfe": ("UTF-16", "iconv -f UTF-16"), b"\xfe\xff": ("UTF-16", "iconv -f UTF-16"),
}  # fmt: skip
LARGEST_BYTES = 256 << 20  # of a longer log only the end is read: that is where a job says why it died
MOST_SENT = 4 << 30  # by the standard input: some seconds of reading
_BLOCK = 1 << 20
FIRST_LINES, LAST_LINES = 20_000, 80_000  # that tell something; a job that prints more of them repeats itself

_INNER_RANK = re.compile(r"\[[Rr]ank[ =](\d{1,9})\]")
_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\.?\s{0,4}(\d+) vs (\d+)")
_KEYS = re.compile(r"\bkeys?\b", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s'\",\]]+")
_LAST_NUMBER = re.compile(r"/(\d{1,7})\.?$")
_JOINED = re.compile(r"(\d{1,9})/(\d{1,9}) (?:clients|workers) joined")
_AT_BARRIER = re.compile(r"Timed out initializing.{0,120}\(world_size=(\d{1,9}), worker_count=(\d{1,9}),")
_UNREACHABLE = re.compile(
    r"Rendezvous(?:Connection|Timeout)Error|client socket has timed out after \d{1,9}\s?m?s while trying to connect to|"
    r"connect\(\) timed out\. Original timeout|"
    r"Error: (?:host not found: |The [^()]{0,80}\([^()]{1,200}\) cannot be retrieved)"
)
_PEER_GONE = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|remote process exited|Broken pipe|ncclRemoteError|"
    r"Application timeout caused pair closure|connectFullMesh failed"
)
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: Work\w{0,20}\((?=SeqNum|OpType)"
    r"(?:SeqNum=(\d{1,18}),)?(?: ?OpType=(\w{1,40})[,)])?"
)
# The same of backend nccl2, the default from torch 2.15 on, and of torchcomms: neither number nor operation.
_NCCL2 = re.compile(
    r"\[TC\]\[rank[ =]\d{1,9}\]\[(?:name=|comm )([^\]]{0,200})\] Operation timed out after (\d{1,18}) ms"
)
_GIL = "possible GIL induced hang"
_ELEMENTS = re.compile(r"NumelIn=(\d{1,18}), NumelOut=(\d{1,18})[,)]")
_TIMEOUT = re.compile(r"Timeout\(ms\)=(\d{1,18})")
_WORK = re.compile(
    r"last enqueued (?:NCCL )?work: (-?\d{1,20}), last completed (?:NCCL )?work: (-?\d{1,20})", re.IGNORECASE
)
# A rank that was asked to dump says who had asked: whose own watchdog has struck.
_OF_ANOTHER = re.compile(r"due to a collective timeout from {1,4}rank (\d{1,9})\b")
_UNSET = 1 << 62  # a count from here on is -1 without its sign
_WORK_AT = re.compile(r"(?:at work|NCCL work|work sequence id): (\d{1,18})")
_GROUP = re.compile(r"\[(PG (?:ID )?\d{1,9}[^\]]{0,200}?) ?Rank \d{1,9}\]")
_LAGGING = re.compile(r"^- ?\[([\d, ]{1,4000})\] (joined but didn't finish|finished) collective #(\d{1,18})|"
                      r"^\[([\d, ]{1,4000})\] (joined but didn't finish|finished) collective #(\d{1,18})")  # fmt: skip
_MISSED = re.compile(r"Ranks? (\d{1,6}(?:, ?\d{1,6}){0,1000}) failed to pass monitoredBarrier")
_WAITED = re.compile(r"Timed out waiting (\d{1,18})ms for (?:recv|send) operation")
_KILLED = re.compile(
    r"[Oo]ut of memory: Killed process (\d{1,9})|oom.kill event|[Rr]eason\W{1,20}OOMKilled|"
    r"Workers \(tasks / actors\) killed due to memory pressure|was killed due to the node running low on memory"
)
# How launchers other than torchrun, and torchrun before its table, say that a process ended: what, and how.
_ENDED = re.compile(
    r"failed \((exitcode: -?\d{1,9})\) (local_rank: \d{1,9})|"
    r"srun: error: (\S{1,200}: tasks? [\d,-]{1,200}): (?!Terminated)(\S.{0,80})|"
    r"(process rank \d{1,9}) with PID .{0,300}? exited on (signal \d{1,3}[^.]{0,40})|"
    r"(sigkill_handler)\].{0,4000} exits with (return code = -?\d{1,9})|"
    r"(Worker) exit type: ([A-Z]{1,20}_ERROR)|"
    r"\*\*\* ((?:STEP|JOB) \S{1,60}) ON .{1,200}? DUE TO ([A-Z][A-Z ]{1,40})"
)
_TERMINATED = re.compile(
    r"Terminating the process after attempting to dump debug info, due to ([\w ]{1,80})|"
    r"Aborting process (?:on rank \d{1,9} )?due to (timeout)"
)
_CRASHED = re.compile(
    r"(?:Signal|Fatal Python error): (Segmentation fault|Bus error|Illegal instruction|Floating point exception)"
)
# What torch says of its own wherever it stands in a line: loggers quote it, and lines of several ranks run into each other.
_QUOTED = re.compile(
    r"Detected mismatch between collectives on ranks\.|Expected to have finished reduction in the prior iteration|"
    r"Unexpected bus error encountered in worker\."
)
# Where consoles, and Open MPI itself, break a line whose rest tells something.
_OPEN_ENDS = (
    "Watchdog caught",
    "Watchdog caught collective operation timeout:",
    " exited on",
    "ms, keys:",
    ") reason :",
    "Last error:",
)
# Behind it stands what NCCL warns of, or what an error of a communicator is.
NCCL_SAYS = re.compile(r"NCCL WARN |(?:nccl hit async|NCCL Async|\] Async) [Ee]rror(?: on rank \d{1,9})?: ")
_GAVE_UP = ("Watchdog caught", "] Operation timed out after ")
_TAKEN = re.compile(
    r"server socket has failed to (?:bind|listen).{1,100}(?::(\d{1,5}) \(errno: \d{1,3} - Address already in use|"
    r"port: (\d{1,5}),.{1,60}EADDRINUSE)"
)
_CANNOT_LISTEN = "The server socket has failed to listen on any local network address"
_GRADLESS = re.compile(r"did not receive grad for rank (\d{1,7}):")
_NOWHERE = SourceLine()
_ENV_RANK = re.compile(r"^\s{1,40}RANK:\s{1,40}(\d{1,7})$")  # of a container, in what `kubectl describe pod` prints
_ENV_LINES = 80  # behind how its last process ended
_XID = re.compile(r"NVRM: Xid \((PCI:[\w:.]{1,30})\): (\d{1,4})\b(?:.{0,40}?\bpid=(\d{1,9}))?")
_GPU_FAULT = re.compile(r"HW Exception by (GPU node-\d{1,4}) [^:]{0,80}: ?\S{0,20}\)? reason ?: ?(\w[\w ]{0,60})")
_OF_NETWORK = re.compile(
    r"NET/\w{1,12} ?: ?(Got completion from peer \S{1,60} with [^,(]{1,60})|"
    r"(connect returned [\w ]{1,40}, exceeded error retry count)"
)
# What CUDA and HIP say of a kernel where nobody raises it, and of an assertion in one.
_PRINTED = re.compile(
    r"(?:CUDA|HIP) error: (?:an illegal memory access|misaligned address|unspecified launch failure)[^'\"]{0,60}|"
    r"Memory access fault by GPU node-\d{1,4}"
)
_ASSERTED = re.compile(
    r"([\w.-]{1,80}:\d{1,6}): .{0,200}?block: \[[\d,]{1,40}\], ?thread: \[[\d,]{1,40}\],? Assertion `([^`]{1,200})` failed"
)
_AGENT = re.compile(r"/torchelastic/role_info/(\d{1,7})\b")
_EXIT_BARRIER = re.compile(r"Error waiting on exit barrier\.(?: Elapsed: (\d{1,9}))?")
_LOOPBACK = "Using the loopback address as fallback"
_FRAME = re.compile(r'File "([^"]{1,1000})", line (\d{1,9}), in (\S{1,200})')
_RAISED = re.compile(r"^([A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit|Warning|Timeout)): ?(.*)")
_SAYS_ITS_RANK = re.compile(r"\[?[Rr]ank[ :=]{1,2}(\d{1,7})\]?:")  # at the beginning of what was raised
_RAISED_WORDLESS = re.compile(r"^([A-Za-z_][\w.]{0,200}(?:Error|Exception|Timeout))$")  # below a traceback
_ENDED_AT = re.compile(r"^\s{0,20}time\s{0,20}:\s{0,4}(\d{4}-\d\d-\d\d)_(\d\d:\d\d:\d\d)")
_ENDED_RANK = re.compile(r"^\s{0,20}rank\s{0,20}:\s{0,4}(\d{1,9})\s{0,4}\(local_rank", re.IGNORECASE)
_ENDED_CODE = re.compile(r"^\s{0,20}exitcode\s{0,20}:\s{0,4}(-?\d{1,9})\s{0,4}\(pid: ?(\d{0,9})")
# What an exception says in lines of its own, below the first one.
_DETAIL = re.compile(
    r"^(?:Last error: (?=\S)|Duplicate GPU detected|Net : |NET/|Error while creating shared memory|Error: failed to extend |"
    r"Parameters? (?:indices )?which did not receive grad|"
    r"(?:Missing|Unexpected) key\(s\) in state_dict|size mismatch for )"
)
_LAST_ERROR = "Last error: "  # of NCCL's: what went wrong stands behind it, in a line of its own
# What tqdm draws: `Saving:  36%|###   | 24/67 [23:16<30:00, 41.87s/it]`.
_BAR = re.compile(r"([^\r%|]{0,200}?):?\s{0,10}\d{1,3}%\|[^|]{0,400}\| (\d{1,18})/(\d{1,18}) \[")
_AFTER_A_BAR = re.compile(r"(?<=[a-z]\])(?=\[(?:[a-z]{1,20}\d{1,7}\]:|E ))")  # another's line that runs into it
_BAR_LINES = 50  # between a bar and the timeout of those who wait for whoever draws it
LONGEST_LINE = 4000  # letters; the lines that tell something are shorter
_DIGITS = re.compile(r"(\d{40})\d+")  # no number, and patterns that begin with one try it from every digit on
# What a line must hold to be looked at: all the others are let go at once.
_TELLING = re.compile(
    r"Error|Exception|Interrupt|Exit|Warning|Timeout|File \"|op\.preamble|default_pg|clients joined|peer|remote process|"
    r"Broken pipe|[Ww]atchdog|last enqueued|Last enqueued|collective #|Timed out waiting|Killed process|oom-kill|"
    r"NCCL (?:WARN|DIAG)|Duplicate GPU|did not receive grad|key\(s\) in state_dict|size mismatch|rank\s{0,20}:|exitcode|"
    r"Memory access fault|(?:CUDA|HIP) error: |Assertion `|torchelastic/role_info|exit barrier|loopback address|FullMesh|"
    r"oom.kill|srun: |STEP |DUE TO |process rank|sigkill_handler|Signal: |Fatal Python|Detected mismatch|finished reduction|"
    r"timed out|workers joined|Last error: |OOMKilled|memory pressure|NVRM: Xid|low on memory|Terminating the process|"
    r"\[TC\]\[rank|GIL induced|time\s{0,20}: +\d|Application timeout|remote peer|[Mm]ismatched collective|bus error|"
    rf"exit type|error retry count|server socket|death signal|got signal|\sRANK:|{FAULTS}"
)
_STANDS = re.compile(r"watchdog got stuck for (\d{1,9}) seconds without making progress")
# A launcher that was itself asked to end, and passes that on.
_INTERRUPTED = re.compile(
    r"Received (\d{1,2}) death signal, shutting down workers|Process \d{1,9} got signal: (\d{1,2})$"
)
# An exception of a loader's worker, of a thread or of a replica, that torch raises again in the rank: its own follows.
_RAISED_AGAIN = re.compile(
    r"^([\w.]{1,100}): Caught \w{1,100} in ((?:DataLoader worker process|pin memory thread|replica)[^.]{0,60})"
)
TORCHS_KINDS = frozenset({"RuntimeError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError"})
NEWEST_TRAINING = 256  # lines that speak of training, of which it is known how many came after an error
_OWN_PREFIX = re.compile(rf"{BRACKETED}|\d{{1,7}}: ")
_BEGINS = frozenset("[0123456789")
_COLOUR = re.compile(r"\x1b\[[\d;]{0,20}m")


def read_log_stream(stream: BinaryIO) -> Recording:
    """What a log tells that comes by the standard input. Of a longer one only the end is read, as of a file.

    NothingToInspect: nothing that names a rank, a size or an error. UnreadableRecording: it does not end.
    """
    with io.BufferedReader(_End(stream), _BLOCK) as end:
        return _telling(parse_lines(_cut(end)), "the text on standard input")


class _End(io.RawIOBase):
    """The last `LARGEST_BYTES` of a stream, which is read to its end first.

    UnreadableRecording: after `MOST_SENT` it has not come to one.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._blocks = deque[bytes](maxlen=LARGEST_BYTES // _BLOCK)
        sent = 0
        while block := stream.read(_BLOCK):
            self._blocks.append(block)
            sent += len(block)
            if sent > MOST_SENT:
                raise UnreadableRecording(
                    f"the standard input has sent {MOST_SENT >> 30} GiB and has not ended",
                    way_out=f"Send the end of the log: tail -c {LARGEST_BYTES >> 20}M FILE | distdoctor examine -",
                )

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        view = memoryview(into)
        block = self._blocks.popleft() if self._blocks else b""
        taken, rest = block[: len(view)], block[len(view) :]
        if rest:
            self._blocks.appendleft(rest)
        view[: len(taken)] = taken
        return len(taken)


def read_log(path: Path) -> Recording:
    """What a log file tells.

    NothingToInspect: nothing that names a rank, a size or an error.
    """
    try:
        with opened(path) as file:
            head = file.read(8)
            size = file.seek(0, 2)
            file.seek(max(0, size - LARGEST_BYTES))
            recording = parse_lines(_cut(file))
    except OSError as trouble:
        raise UnreadableRecording(f"{path} cannot be read: {trouble.strerror}", way_out="Copy the log again.") from None
    for first, (what, unpacks) in _NO_TEXT.items():
        if head.startswith(first) and not recording.clues:
            raise UnreadableRecording(f"{path} is no text but {what}", way_out=f"{unpacks} FILE | distdoctor examine -")
    return _telling(recording, str(path))


# Whose output a file is, by its name or its folder's: torchrun's `--log-dir` (attempt, local rank), a rank's own, srun's `%t`.
_OF_TORCHRUN = re.compile(r"(?:^|/)attempt_(\d{1,6})/(\d{1,7})/(?:stdout|stderr)\.log$")
_OF_MASTER = re.compile(r"(?:^|[^A-Za-z])master[_.-]?\d", re.IGNORECASE)  # of Kubeflow: rank 0, before the workers
_OF_TASK = re.compile(r"(?:^|[^A-Za-z])(task|proc|process|worker)[_.-]?(\d{1,7})(?:[^\d]|$)", re.IGNORECASE)
_HAS_RANK = re.compile(BRACKETED)
MOST_LOGS = 20_000  # files of one job: ten thousand ranks with two each


def read_logs(logs: dict[str, Path]) -> Recording:
    """What the logs of one job tell together; each by its name below the folder that holds all of them.

    NothingToInspect: nothing that names a rank, a size or an error.
    """
    newest = max((int(found[1]) for name in logs if (found := _OF_TORCHRUN.search(name))), default=0)
    chosen = {n: p for n, p in logs.items() if not (f := _OF_TORCHRUN.search(n)) or int(f[1]) == newest}
    chosen = dict(itertools.islice(chosen.items(), MOST_LOGS))
    share = LARGEST_BYTES // max(1, len(chosen))
    beside_master = any(_OF_MASTER.search(name) for name in chosen)
    begins: list[tuple[int, str]] = []  # the number of the line before the first of each file

    def lines() -> Iterator[str]:
        count = 0
        for name, path in chosen.items():
            begins.append((count, name))
            for line in _of_file(path, _prefix_of(name, workers_are_ranks=not beside_master), share):
                count += 1
                yield line

    recording = parse_lines(lines())
    numbers = [number for number, _ in begins]

    def placed(clue: Clue) -> Clue:
        at = bisect_left(numbers, clue.line_number) - 1
        # What stands below a line may stand in another file: it is no later.
        counted = () if clue.kind is ClueKind.TRAINING else clue.numbers
        return replace(
            clue, line_number=clue.line_number - numbers[at], file=begins[at][1], lines_after=0, numbers=counted
        )

    return _telling(replace(recording, clues=tuple(map(placed, recording.clues))), f"what lies in {len(chosen)} logs")


def _of_file(path: Path, prefix: str, most: int) -> Iterator[str]:
    """The lines at the end of one of several logs, each with the prefix that its launcher would have printed."""
    try:
        with opened(path) as file:
            file.seek(max(0, file.seek(0, 2) - most))
            for line in _cut(file):
                yield line if not prefix or _HAS_RANK.match(line) else prefix + line
    except OSError:
        return


def _prefix_of(name: str, *, workers_are_ranks: bool) -> str:
    if found := _OF_TORCHRUN.search(name):
        return f"[default{found[2]}]:"
    if found := NAMED_RANK.search(name):
        return f"[rank{found[1]}]: "
    found = _OF_TASK.search(name)
    return f"{found[2]}: " if found and (workers_are_ranks or found[1].lower() != "worker") else ""


def _telling(recording: Recording, name: str) -> Recording:
    if not recording.clues and not recording.job.ends and recording.stacks is None:
        raise NothingToInspect(
            f"{name} is no recording and no flight recorder dump, and read as a job log it tells of no error, no timeout and no "
            "lost rank",
            way_out="If the job failed or hangs, give the output of all its ranks, its run folder or flight recorder dumps.",
        )
    return recording


def _cut(file: BinaryIO) -> Iterator[str]:
    """The lines of a file, one at a time, long ones in pieces."""
    while line := file.readline(LONGEST_LINE):
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def parse_log(text: str) -> Recording:
    """What the text of a log tells."""
    return parse_lines(line[:LONGEST_LINE] for line in text.splitlines())


def parse_lines(lines: Iterable[str]) -> Recording:
    """What the lines of a log tell."""
    telling = _EndsOfLog()
    last, training, bars = 0, _Training(), _Bars()
    spoken, printed_stacks = _LastWords(), PrintedStacks()
    for last, line in _whole(lines):
        printed_stacks.see(last, line)
        bars.see(last, line)
        training.see(last, line)
        spoken.see(last, line)
        if _TELLING.search(line):
            telling.append(last, _DIGITS.sub(r"\1", _COLOUR.sub("", line)))
    printed = PrintedRanks(line for _, line in telling)
    faults = _faults(telling, printed)
    clues = _with_groups(tuple(_with_details(_clues(telling, printed))))
    clues = tuple(_with_crash(clue, faults) for clue in clues)
    interrupted = _interrupted(line for _, line in telling)
    told = {clue.line_number for clue in clues}
    spoke = (one for one in spoken.clues(printed) if one.line_number not in told)
    clues = clues and (*training.clues(clues), *bars.last(printed), *clues, *spoke)
    clues = tuple(replace(clue, lines_after=last - clue.line_number) for clue in clues)
    ends, pids = _ends(line for _, line in telling)
    killed = {n for clue in clues if clue.kind is ClueKind.KILLED_FOR_MEMORY for n in clue.numbers}
    ends = {r: replace(e, kernel_kills=1) if pids.get(r) in killed else e for r, e in ends.items()}
    by_pid = {pid: rank for rank, pid in pids.items() if pid}
    clues = tuple(replace(c, rank=by_pid.get(c.numbers[1], -1)) if c.kind is ClueKind.XID else c for c in clues)
    slurm = SlurmEnds.of(line for _, line in telling)
    if printed.tasks_are_ranks or (printed.tasks_are_ranks is None and slurm.several_on_a_host and not ends):
        ends = {**slurm.ends, **ends}
        clues = tuple(_with_ranks(clue) for clue in clues)
    joined = [clue.numbers[1] for clue in clues if clue.kind is ClueKind.JOINED]
    named = {n for c in clues if c.kind in (ClueKind.NOT_ARRIVED, ClueKind.MISSED_BARRIER) for n in c.numbers}
    named |= {c.numbers[0] for c in clues if c.kind is ClueKind.LAGGING}
    troubles = [*telling.troubles()]
    dumped = [*(one.stacks for one in faults if not one.error), *printed_stacks.dumps(printed.of)]
    stacks = of_dumps(dumped, troubles)
    if stacks is not None:
        lasting = max([printed_stacks.last, *(one.line_number for one in faults if not one.error)])
        stacks = replace(stacks, later=training.went_on(lasting, len(dumped)))
    seen = {*ends, *(clue.rank for clue in clues), *named, *(stacks.ranks if stacks is not None else ())}
    world = max([*joined, max(seen, default=-1) + 1])
    exit_code = 1 if ends else None
    job = Job(world_size=world, ends=ends, launcher=LAUNCHER, exit_code=exit_code, interrupted=interrupted)
    return Recording(job=job, ranks={}, streams=frozenset(), clues=clues, troubles=tuple(troubles), stacks=stacks)


def _faults(telling: _EndsOfLog, printed: PrintedRanks) -> list[FaultDump]:
    """What faulthandler has dumped into the log."""
    if not any("hread 0x" in line for _, line in telling):
        return []
    split = ((number, line, without_prefixes(line)) for number, line in telling)
    return fault_dumps((number, words, printed.of(line), printer_of(line, words)) for number, line, words in split)


def _with_crash(clue: Clue, faults: Iterable[FaultDump]) -> Clue:
    """What faulthandler says of a crash with the line at which it was."""
    found = next((one for one in faults if one.line_number == clue.line_number and one.error), None)
    if found is None or clue.kind is not ClueKind.ENDED:
        return clue
    site, inner = found.crashed
    return replace(clue, site=site, inside=inner)


class _Training:
    """The first line that speaks of training, and the last ones."""

    def __init__(self) -> None:
        self._first: Clue | None = None
        self._newest: deque[Clue] = deque(maxlen=NEWEST_TRAINING)

    def see(self, number: int, line: str) -> None:
        if TRAINING.search(line):
            clue = Clue(ClueKind.TRAINING, line[:500], line_number=number)
            self._first = self._first or clue
            self._newest.append(clue)

    def went_on(self, number: int, ranks: int) -> str:
        """The last line, where so many are behind that number that more than the ranks of that moment have printed them; else
        ""."""
        after = [clue for clue in self._newest if clue.line_number > number]
        return after[-1].words[:200] if len(after) >= max(3, 2 * ranks) else ""

    def clues(self, others: Iterable[Clue]) -> Iterator[Clue]:
        """The first, and the last with the number of those behind every line that tells of something wrong."""
        wrong = max((clue.line_number for clue in others if clue.kind is not ClueKind.WARNING), default=0)
        after = sum(clue.line_number > wrong for clue in self._newest)
        if self._first is not None:
            yield self._first
        if after:
            yield replace(self._newest[-1], numbers=(after,))


class _LastWords:
    """The last line of every rank that has a prefix of its own."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[int, str]] = {}

    def see(self, number: int, line: str) -> None:
        if line[:1] in _BEGINS and (prefix := _OWN_PREFIX.match(line)) and len(self._lines) < MOST_RANKS:
            self._lines[prefix[0]] = number, line

    def clues(self, printed: PrintedRanks) -> Iterator[Clue]:
        found: dict[int, Clue] = {}
        for number, line in sorted(self._lines.values()):
            rank = printed.of(line)
            if rank >= 0:
                words = without_prefixes(line).strip()[:300]
                found[rank] = Clue(ClueKind.LAST_WORDS, words, rank, line_number=number)
        return iter(found.values())


def _interrupted(lines: Iterable[str]) -> int:
    """The signal by which somebody asked torchrun to end the job, 0 for none."""
    found = (_INTERRUPTED.search(line) for line in lines)
    return next((int(one[1] or one[2]) for one in found if one is not None), 0)


class _Bars:
    """The last progress bar before the first timeout of a watchdog."""

    def __init__(self) -> None:
        self._bar: tuple[int, str, re.Match[str]] | None = None
        self._timed_out = 0

    def see(self, number: int, line: str) -> None:
        if self._timed_out:
            return
        if "%|" in line and (bar := _bar_in(without_prefixes(line))):
            self._bar = (number, line, bar)
        if any(words in line for words in _GAVE_UP):
            self._timed_out = number

    def last(self, printed: PrintedRanks) -> Iterator[Clue]:
        """The bar, if it was not at its end and was still being drawn."""
        if self._bar is None or not 0 <= self._timed_out - self._bar[0] <= _BAR_LINES:
            return
        number, line, bar = self._bar
        done, total = int(bar[2]), int(bar[3])
        if done < total:
            what = bar[1].strip()
            yield Clue(ClueKind.BUSY, bar[0][:200], printed.of(line), (done, total), line_number=number, operation=what)


def _bar_in(words: str) -> re.Match[str] | None:
    """The first bar of a line, with up to 200 letters before it."""
    at = words.find("%|")
    before = max(at - 200, words.rfind("|", 0, max(at, 0)) + 1, 0)
    return _BAR.match(words[before : at + 450])


class _EndsOfLog:
    """The lines that tell something, with their numbers: the first and the last ones of a log that has very many."""

    def __init__(self) -> None:
        self._first: list[tuple[int, str]] = []
        self._last = deque[tuple[int, str]](maxlen=LAST_LINES)
        self._count = 0

    def append(self, number: int, line: str) -> None:
        self._count += 1
        (self._first if self._count <= FIRST_LINES else self._last).append((number, line))

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return itertools.chain(self._first, self._last)

    def troubles(self) -> tuple[Trouble, ...]:
        """What was left out between the two."""
        left_out = self._count - FIRST_LINES - LAST_LINES
        if left_out <= 0:
            return ()
        between = f"between lines {self._first[-1][0]} and {self._last[0][0]}"
        return (Trouble(f"{left_out} lines of the log {between} speak of errors too, and were not read"),)


def _with_ranks(clue: Clue) -> Clue:
    """What srun says of tasks, where they are ranks."""
    said = SAYS.search(clue.words) if clue.kind is ClueKind.ENDED else None
    return replace(clue, numbers=ranks_of(said[2])) if said is not None else clue


def _whole(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines with their numbers from 1; one that breaks off where the timeout should follow, with the next."""
    begun = ""
    for number, line in _shown(lines):
        if line.rstrip().endswith(_OPEN_ENDS):
            begun = line.rstrip()
            continue
        yield number, f"{begun} {_rest(begun, line)}" if begun else line
        begun = ""


def _rest(begun: str, line: str) -> str:
    """What a line goes on with, without the prefix that both parts have."""
    prefix = _OWN_PREFIX.match(begun)
    return line.removeprefix(prefix[0] if prefix else "").lstrip()


def _shown(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines with their numbers; what a progress bar writes over its last state is a line of its own."""
    for number, line in enumerate(lines, start=1):
        for part in line.split("\r") if "\r" in line else (line,):
            yield from ((number, one) for one in (_AFTER_A_BAR.split(part) if "%|" in part else (part,)))


def _clues(lines: Iterable[tuple[int, str]], printed: PrintedRanks) -> Iterator[Clue]:
    sites: dict[int, SourceLine] = {}  # rank -> the innermost user line of the traceback that is being printed
    innermost: dict[int, str] = {}  # and the file of the innermost one
    again: dict[int, Clue] = {}  # rank -> an exception that torch has raised again, of which the cause follows
    last = -1
    taken: tuple[int, ...] = ()
    for number, line in lines:
        if found := _ENV_RANK.match(_OWN_PREFIX.sub("", line, count=1)):
            yield Clue(ClueKind.CONTAINER_RANK, "", int(found[1]), line_number=number)
            continue
        if found := _TAKEN.search(line):
            taken = (int(found[1] or found[2]),)
        rank = printed.of(line)
        words = without_prefixes(line)
        frame = _FRAME.search(words)
        if frame is not None:
            innermost[rank] = frame[1]
            if is_users_path(frame[1]):
                sites[rank] = SourceLine(frame[1], int(frame[2]), frame[3])
            continue
        lagging = list(_lagging(words.strip(), number, last))
        yield from lagging
        yield from _of_another(words, number)
        clue = None if lagging else _clue(words)
        if (quoted := _QUOTED.search(words)) is not None:
            words = f"RuntimeError: {words[quoted.start() :]}"
        raised = _RAISED.match(words.strip())
        if raised is None and rank in innermost:
            raised = _RAISED_WORDLESS.match(words.strip())
        if _DETAIL.match(words.strip()):
            detail = words.strip().removeprefix(_LAST_ERROR)
            yield Clue(ClueKind.DETAIL, detail[:500], rank, line_number=number)
        if clue is None and raised is None:
            if printed_words := _printed(words):
                yield Clue(ClueKind.PRINTED, printed_words, rank, line_number=number)
            continue
        if rank < 0 and clue is not None and clue.kind is ClueKind.TIMED_OUT and clue.group in ("", *OF_ALL):
            inner = _INNER_RANK.search(line)  # without a launcher's prefix there is nothing better
            rank = int(inner[1]) if inner else -1
        if rank < 0 and raised is not None and (own := _SAYS_ITS_RANK.match(raised[raised.lastindex or 0])):
            rank = int(own[1])
        last = rank
        site = sites.pop(rank, _NOWHERE) if raised else sites.get(rank, _NOWHERE)
        raised_in = innermost.pop(rank, "") if raised else ""
        if (
            clue is not None
            and clue.kind is ClueKind.PEER_GONE
            and raised
            and is_of_the_programs_own(raised[1], raised_in)
        ):
            clue = None
        if clue is None and site is _NOWHERE and raised is not None and raised[1].endswith("Warning"):
            continue  # printed, not raised
        known = clue or Clue(ClueKind.EXCEPTION, "")
        known = replace(known, numbers=taken) if known.kind is ClueKind.PORT_TAKEN else known
        known = replace(
            known, words=words.strip()[:1000], rank=rank, site=site, line_number=number, raised_in=raised_in
        )
        if known.kind is ClueKind.EXCEPTION and _RAISED_AGAIN.match(known.words):
            again[rank] = known
            continue
        yield _with_cause(again.pop(rank), known) if known.kind is ClueKind.EXCEPTION and rank in again else known
    yield from again.values()


def _printed(words: str) -> str:
    """What a line says of a kernel that failed, "" where it says nothing of that."""
    if found := _ASSERTED.search(words):
        return f"CUDA: Assertion `{found[2]}` failed at {found[1]}"
    found = _PRINTED.search(words)
    return found[0].strip() if found else ""


def is_of_the_programs_own(kind: str, raised_in: str) -> bool:
    """Whether an exception about a connection is about one that the program opened itself: no kind of torch's, in a file
    of the user's."""
    return is_users_path(raised_in) and kind.rpartition(".")[2] not in TORCHS_KINDS


def _with_cause(outer: Clue, cause: Clue) -> Clue:
    """What a worker raised, in the place of what torch made of it in the rank."""
    said = _RAISED_AGAIN.match(outer.words)
    if said is None or cause.words.partition(":")[0].rpartition(".")[2] != said[1].rpartition(".")[2]:
        return cause
    words = f"{cause.words} (in {said[2]})"[:1000]
    return replace(cause, words=words, site=cause.site or outer.site, line_number=outer.line_number)


def _of_another(words: str, number: int) -> Iterator[Clue]:
    """The timeout of the rank by which whoever prints the line was asked to dump."""
    if other := _OF_ANOTHER.search(words):
        said, unnumbered = words.strip()[:1000], (-1, 0, -1, -1)
        yield Clue(ClueKind.TIMED_OUT, said, int(other[1]), unnumbered, line_number=number, group=_group_in(words))


def _lagging(words: str, number: int, printed_by: int) -> Iterator[Clue]:
    """Whom torch's desync report blames; it goes on over several lines, of which only the first has a prefix."""
    match = _LAGGING.match(words)
    if match is None or ((match[2] or match[5]) == "finished" and "didn't join" not in words):
        return
    for rank in re.findall(r"\d+", match[1] or match[4]):
        at = re.search(r"join collective #(\d{1,18})", words)
        yield Clue(
            ClueKind.LAGGING,
            words[:500],
            printed_by,
            (int(rank), int(at[1] if at else match[3] or match[6])),
            line_number=number,
        )


def _with_details(clues: Iterable[Clue]) -> Iterator[Clue]:
    """The exceptions with what they say in further lines."""
    found: list[Clue] = []
    raised: dict[int, int] = {}  # rank -> where its last exception stands in `found`
    for clue in clues:
        if clue.kind is ClueKind.CONTAINER_RANK:
            last = found[-1] if found else clue
            if last.kind is ClueKind.KILLED_FOR_MEMORY and clue.line_number - last.line_number <= _ENV_LINES:
                found[-1] = replace(last, rank=clue.rank)
        elif clue.kind is not ClueKind.DETAIL:
            if clue.kind is ClueKind.EXCEPTION:
                raised[clue.rank] = len(found)
            found.append(clue)
        elif clue.rank in raised:
            first = found[raised[clue.rank]]
            of_rank = _GRADLESS.search(clue.words) if first.rank < 0 else None  # DDP says itself who lacks them
            rank = int(of_rank[1]) if of_rank else first.rank
            found[raised[clue.rank]] = replace(first, words=f"{first.words}\n{clue.words}"[:1000], rank=rank)
    return iter(found)


def _with_groups(clues: tuple[Clue, ...]) -> tuple[Clue, ...]:
    """The timeouts with the group that the same rank prints about the same number, else the only one that any rank does."""
    told = (ClueKind.WORK, ClueKind.TIMED_OUT)
    work = [clue for clue in clues if clue.kind in told and clue.group and clue.numbers[0] >= 0]
    own = {(clue.rank, clue.numbers[0]): clue.group for clue in work}
    groups: dict[int, set[str]] = {}
    for clue in work:
        groups.setdefault(clue.numbers[0], set()).add(clue.group)
    only = {number: next(iter(names)) for number, names in groups.items() if len(names) == 1}
    return tuple(
        replace(clue, group=own.get((clue.rank, clue.numbers[0])) or only.get(clue.numbers[0], ""))
        if clue.kind is ClueKind.TIMED_OUT and not clue.group
        else clue
        for clue in clues
    )


def _clue(words: str) -> Clue | None:
    """What one line tells, without who printed it."""
    for kind, pattern in _NUMBERS:
        if found := pattern.search(words):
            return Clue(kind, "", numbers=tuple(int(group) for group in found.groups() if group))
    if found := _AT_BARRIER.search(words):
        return Clue(ClueKind.JOINED, "", numbers=(int(found[2]), int(found[1])))
    if found := _MISSED.search(words):
        return Clue(ClueKind.MISSED_BARRIER, "", numbers=tuple(map(int, found[1].split(","))))
    if found := _WATCHDOG.search(words):
        elements, timeout = _ELEMENTS.search(words), _TIMEOUT.search(words)
        sizes = (int(elements[1]), int(elements[2])) if elements else (-1, -1)
        return Clue(
            ClueKind.TIMED_OUT,
            "",
            numbers=(int(found[1] or -1), int(timeout[1]) if timeout else 0, *sizes),
            operation=found[2] or "",
            group=_group_in(words),
        )
    if found := _NCCL2.search(words):
        return Clue(ClueKind.TIMED_OUT, "", numbers=(-1, int(found[2]), -1, -1), group=found[1])
    if "NCCL operation timed out" in words or "NCCL communicator was aborted after a previous error" in words:
        return Clue(ClueKind.TIMED_OUT, "", numbers=(-1, 0, -1, -1))
    if _GIL in words:
        return Clue(ClueKind.GIL_HELD, "")
    if found := _STANDS.search(words):
        return Clue(ClueKind.STANDS, "", numbers=(int(found[1]),))
    if found := _WORK.search(words):
        at = _WORK_AT.search(words[: found.start()])
        enqueued, completed = (int(found[1]), int(found[2]))
        if completed > enqueued:  # torch prints what it has never set
            enqueued, completed = (enqueued if enqueued < _UNSET else -1), -1
        numbers = (int(at[1]) if at else -1, enqueued, completed)
        return Clue(ClueKind.WORK, "", numbers=numbers, group=_group_in(words))
    if remark_in(words) is not None:
        return Clue(ClueKind.DIAGNOSTIC, "")
    if (met := _of_meeting(words)) is not None:
        return met
    if found := _ENDED.search(words):
        # What is empty is of the other launchers' patterns.
        whose, how = (one for one in found.groups() if one)
        return Clue(ClueKind.ENDED, "", operation=f"{'a rank' if whose == 'sigkill_handler' else whose}, {how.strip()}")
    if found := _TERMINATED.search(words):
        return Clue(ClueKind.ENDED, "", operation=f"torch ended it because of a {(found[1] or found[2]).strip()}")
    if found := _CRASHED.search(words):
        return Clue(ClueKind.ENDED, "", operation=found[1])
    if found := _GPU_FAULT.search(words):
        return Clue(ClueKind.GPU_FAULT, "", operation=f"{found[1]}: {found[2].strip()}")
    if found := _XID.search(words):
        return Clue(ClueKind.XID, "", numbers=(int(found[2]), int(found[3] or 0)), operation=found[1])
    if (found := _OF_NETWORK.search(words)) and not NCCL_SAYS.search(words):
        return Clue(ClueKind.NETWORK, "", operation=(found[1] or found[2]).strip())
    if _PEER_GONE.search(words):  # NCCL warns of it as well
        return Clue(ClueKind.PEER_GONE, "")
    if (found := NCCL_SAYS.search(words)) and words[found.end() :].strip():
        return Clue(ClueKind.WARNING, "")
    if _CANNOT_LISTEN in words:
        return Clue(ClueKind.PORT_TAKEN, "")
    keys = _KEYS.search(words)
    tokens = _SEPARATORS.split(words[keys.end() :]) if keys else ()
    missing = tuple(int(m[1]) for token in tokens if "default_pg" in token and (m := _LAST_NUMBER.search(token)))
    return Clue(ClueKind.NOT_ARRIVED, "", numbers=missing) if missing else None


def _group_in(words: str) -> str:
    """The group whose watchdog prints the line, "" where it does not say."""
    found = _GROUP.search(words)
    return found[1].strip() if found else ""


def _of_meeting(words: str) -> Clue | None:
    """What a line tells of the store and the addresses by which ranks and their launchers meet."""
    if _UNREACHABLE.search(words):
        return Clue(ClueKind.UNREACHABLE, "")
    if _LOOPBACK in words:
        return Clue(ClueKind.LOOPBACK, "", numbers=(1,) if "connectFullMesh failed" in words else ())
    if "timeout after" in words and (agents := _AGENT.findall(words)):
        return Clue(ClueKind.AGENTS, "", numbers=tuple(map(int, agents)))
    return None


_NUMBERS = (
    (ClueKind.EXIT_BARRIER, _EXIT_BARRIER),
    (ClueKind.SIZES, _SIZES),
    (ClueKind.JOINED, _JOINED),
    (ClueKind.WAITED, _WAITED),
    (ClueKind.KILLED_FOR_MEMORY, _KILLED),
)


def _ends(lines: Iterable[str]) -> tuple[dict[int, RankEnd], dict[int, int]]:
    """How torchrun says that ranks ended, to the second, and their process ids. It SIGTERMs who is left as soon as one fails."""
    rank: int | None = None
    at_ns = 0
    ends: dict[int, RankEnd] = {}
    pids: dict[int, int] = {}
    for line in lines:
        words = without_prefixes(line)
        if (moment := _ENDED_AT.match(words)) is not None:
            at_ns = _wall_ns(f"{moment[1]}T{moment[2]}")
            continue
        match = _ENDED_RANK.match(words)
        if match is not None:
            number = whole_number(match[1])
            rank = number if number is not None and number < MOST_RANKS else None
            continue
        code = _ENDED_CODE.match(words)
        if code is not None and rank is not None:
            value = int(code[1])
            ends[rank] = RankEnd(None if value < 0 else value, max(0, -value), value == -15, at_ns)
            pids[rank] = int(code[2] or 0)
            rank, at_ns = None, 0
    return ends, pids


def _wall_ns(written: str) -> int:
    """A moment as torchrun writes it, in the clock of its host; 0 where it is none."""
    try:
        return int(datetime.fromisoformat(written).replace(tzinfo=UTC).timestamp()) * 1_000_000_000
    except ValueError:
        return 0
