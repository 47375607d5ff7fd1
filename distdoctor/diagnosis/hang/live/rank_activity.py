"""Where each rank of a running job stands, told from its stack: in a collective, at its loader, in the user's own code, ..."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from distdoctor.recording.called_functions import OPERATIONS
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.stacks import UNINTERRUPTIBLE, Frame, ProcessStacks, RankStacks, ThreadStack
from distdoctor.recording.trace.layout import Op


class Activity(StrEnum):
    """What a rank is about. The first five wait for other ranks."""

    COLLECTIVE = "collective"  # in a collective or in point-to-point
    BACKWARD = "backward"  # idle inside autograd: DDP or FSDP waits for its reductions there
    HANDLE = "handle"  # waits for the handle of an async operation
    INIT = "init"  # in init_process_group or a rendezvous
    NEW_GROUP = "new group"
    LEAVING = "leaving"  # in destroy_process_group or at the end of the interpreter
    DATA = "data"  # waits for a batch
    CHECKPOINT = "checkpoint"
    DEVICE = "device"  # waits for the accelerator
    COMPUTING = "computing"  # at work inside torch
    USER = "user"  # in code that is no communication
    STOPPED = "stopped"
    GONE = "gone"
    UNREADABLE = "unreadable"


class Grade(StrEnum):
    """What shows where a rank is."""

    STACK = "stack"
    DUMP = "dump"
    RAS = "ras"
    LOG = "log"


UNKNOWN_LINE = SourceLine()
WAITING = frozenset({Activity.COLLECTIVE, Activity.BACKWARD, Activity.HANDLE, Activity.INIT, Activity.NEW_GROUP})
_C10D = "torch/distributed/distributed_c10d.py"
_COLLECTIVES = (_C10D, "torch/distributed/_functional_collectives.py")
_COMMUNICATING = ("/torch/distributed/", "/torch/nn/parallel/distributed.py", "/torch/_C/_distributed")
_INIT = frozenset(
    {"init_process_group", "_store_based_barrier", "_create_c10d_store", "_tcp_rendezvous_handler", "rendezvous"}
)
_NEW_GROUP = frozenset(
    {
        "new_group",
        "_new_group_with_tag",
        "split_group",
        "new_subgroups",
        "new_subgroups_by_enumeration",
        "init_device_mesh",
    }
)
_MAKES_GROUP = "_new_process_group_helper"  # is given the name under which the members look for each other
_MODULES = {
    "torch/nn/parallel/distributed.py": "DistributedDataParallel",
    "torch/distributed/fsdp/fully_sharded_data_parallel.py": "FullyShardedDataParallel",
}
_LEAVING = frozenset({"destroy_process_group", "_shutdown", "_exit_function"})
# A line whose innermost call is C++ says what it waits for only in its own words.
_HANDLE_LINE = re.compile(r"(?i)(?<!store)\.wait(_tensor)?\s*\((?!\s*(?:\[|[fr]?[\"']))")  # a store is given its keys
_DEVICE_LINE = re.compile(r"\.(item|cpu|tolist|numpy)\s*\(|synchronize\s*\(|\.to\(\s*[\"']cpu")
_LONGEST_LINE = 60  # letters of a source line in a sentence


@dataclass(frozen=True)
class RankActivity:
    """One rank: what it is doing, in which torch function, at which line of the user.

    `call` is the operation as torch's Python function is called (`all_reduce`), `arguments` those of its arguments that tell.
    `inner` is the innermost frame. `words` finishes the sentence "rank 1 ...".
    """

    rank: int
    doing: Activity
    seen: RankStacks
    site: SourceLine = UNKNOWN_LINE
    inner: Frame | None = None
    call: str = ""
    op: Op | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    line: str = ""
    grade: Grade = Grade.STACK
    told: str = ""  # in what it waits, as a dump, RAS or a log says

    @property
    def process(self) -> ProcessStacks | None:
        return self.seen.process

    @property
    def where(self) -> str:
        """The user's line, else that of the library that the innermost frames of the standard library belong to."""
        if self.site:
            return self.site.short
        main = self.process.main.in_python if self.process is not None and self.process.main is not None else None
        frames = main.frames if main is not None else ()
        library = next((one for one in frames if "/site-packages/" in one.path), next(iter(frames), None))
        return library.site.short if library is not None else "an unknown line"

    @property
    def still_seconds(self) -> float | None:
        return self.process.still_seconds if self.process else None

    @property
    def is_busy(self) -> bool:
        """Whether it computes, rather than waits."""
        return self.process is not None and self.process.is_busy

    @property
    def keeps_gil(self) -> bool:
        """Whether it is in one call that does not release the GIL. A line that calls nothing is a loop's, met there by chance: it
        lets the GIL go when asked."""
        line = self.line.strip().partition("  #")[0]
        return self.process is not None and self.process.keeps_gil and ("(" in line or not line)

    @property
    def waits_for_ranks(self) -> bool:
        """Whether only other ranks can let it go on."""
        return self.doing in WAITING

    @property
    def names_a_group(self) -> bool:
        """Whether its call was given a group; which one its stack does not show."""
        return self.arguments.get("group", "None") != "None"

    @property
    def group_number(self) -> int | None:
        """Which group it makes, by the running number that is its name; None where it makes none or the name is no number."""
        return int(self.group_name) if self.group_name.isdigit() else None

    @property
    def group_name(self) -> str:
        """The name of the group that it makes: of groups that their members make alone a digest of who they are; "" of none."""
        thread = telling_thread(self.process) if self.doing is Activity.NEW_GROUP and self.process is not None else None
        making = thread.inside(_C10D, _MAKES_GROUP) if thread is not None else None
        return making.arguments.get("group_name", "").strip("\"'") if making is not None else ""

    @property
    def words(self) -> str:
        """`waits in all_reduce`, `is in time.sleep(600)`."""
        return self.told or _WORDS[self.doing](self)

    @property
    def peer(self) -> str:
        """` from rank 0` for receives, ` to rank 2` for sends, ` from root 0`: what the arguments tell."""
        if self.op in (Op.SEND, Op.RECV):
            name, word = ("dst", " to rank ") if self.op is Op.SEND else ("src", " from rank ")
            given = self.arguments.get(name, "")
            return f"{word}{given}" if given.isdigit() else (" from any rank" if self.op is Op.RECV and given else "")
        for name in ("src", "dst"):
            if self.arguments.get(name, "").isdigit():
                return f" with {name}={self.arguments[name]}"
        return ""


KEEPS_GIL = ", and never releases the GIL"  # the end of what a rank in its own code does


def is_at_prompt(process: ProcessStacks) -> bool:
    """Whether a rank is held by pdb: by `breakpoint()`, or by what it steps through since."""
    thread = telling_thread(process)
    return thread is not None and thread.inside("/pdb.py") is not None


def _user(standing: RankActivity) -> str:
    process = standing.process
    if process is not None and is_at_prompt(process):
        return "is at a prompt of pdb"
    line = standing.line.strip().partition("  #")[0].rstrip()
    line = line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3].rstrip()}..."
    function = standing.site.function if standing.site.function[:1] != "<" else ""
    what = f"is at `{line}`" if line else f"is in {function}" if function else "is in its own code"
    inner = standing.inner
    if inner is not None and not inner.is_users:
        what += f", in {inner.function} of {'/'.join(inner.path.split('/')[-2:])}"
    if standing.keeps_gil:
        what += KEEPS_GIL
    return what


_WORDS: Mapping[Activity, Callable[[RankActivity], str]] = {
    Activity.COLLECTIVE: lambda s: f"waits in {s.call}{s.peer}",
    Activity.BACKWARD: lambda s: "waits inside backward, where gradients are reduced",
    Activity.HANDLE: lambda s: f"waits for a handle: `{s.line.strip()}`",
    Activity.INIT: lambda s: f"waits in {s.call}",
    Activity.NEW_GROUP: lambda s: f"waits in {s.call}" + (f" number {s.group_number}" if s.group_number else ""),
    Activity.LEAVING: lambda s: f"is shutting down ({s.call})",
    Activity.DATA: lambda s: "waits for its DataLoader",
    Activity.CHECKPOINT: lambda s: f"is in {s.call}, a checkpoint",
    Activity.DEVICE: lambda s: f"waits for the device: `{s.line.strip()}`",
    Activity.COMPUTING: lambda s: "is computing",
    Activity.USER: _user,
    Activity.STOPPED: lambda s: "is stopped",
    Activity.GONE: lambda s: "has no running process",
    Activity.UNREADABLE: lambda s: "cannot be read",
}


def standing_of(seen: RankStacks, sources: Mapping[str, str]) -> RankActivity:
    """Where one rank stands."""
    process = seen.process
    if process is None or process.state in ("X", "Z"):
        return RankActivity(seen.rank, Activity.GONE, seen)
    thread = telling_thread(process)
    if thread is None or not thread.frames:
        held = process.is_stopped
        return RankActivity(seen.rank, Activity.STOPPED if held else Activity.UNREADABLE, seen)
    return activity_of(seen, process, thread, sources)


def activity_of(
    seen: RankStacks, process: ProcessStacks, thread: ThreadStack, sources: Mapping[str, str]
) -> RankActivity:
    """What a rank is about, as one of its threads tells, which has frames."""
    user = thread.user_frame
    site = user.site if user else SourceLine()
    line = line_of(sources, site)
    doing, frame = _doing(thread, process, line)
    return RankActivity(
        seen.rank,
        Activity.STOPPED if process.is_stopped else doing,
        seen,
        site=site,
        inner=thread.frames[0],
        call=_name_of(frame) if frame else "",
        op=OPERATIONS.get(frame.function) if frame else None,
        arguments=frame.arguments if frame else {},
        line=line,
    )


def _name_of(frame: Frame) -> str:
    """A function of torch as the user calls it: a class by its name."""
    made = next((name for path, name in _MODULES.items() if frame.path.endswith(path)), "")
    if frame.function == "_engine_run_backward":
        return "backward"
    return made if made and frame.function == "__init__" else frame.function


def telling_thread(process: ProcessStacks) -> ThreadStack | None:
    """The thread that says what the rank is about: the main one, unless it only waits for another that communicates."""
    main = process.main.in_python if process.main is not None else None
    if main is None or not main.frames:
        return main
    if main.frames[0].path.endswith(("/threading.py", "/concurrent/futures/_base.py")):
        for thread in (one.in_python for one in process.threads):
            if thread.os_id != main.os_id and _communication(thread) is not None and thread.user_frame is not None:
                return thread
    return main


def only_communicates(seen: RankStacks) -> bool:
    """Whether every thread in which the user's source is at work communicates, but for a main thread that waits for what another
    one in the same file brings."""
    process = seen.process
    main = process.main.in_python if process is not None and process.main is not None else None
    if process is None or main is None or main.user_frame is None:
        return False
    others = [one for one in (t.in_python for t in process.threads) if one.os_id != main.os_id and one.user_frame]
    if any(_communication(one) is None for one in others):
        return False
    if _communication(main) is not None:
        return True
    telling = telling_thread(process)
    brings = telling.user_frame if telling is not None and telling.os_id != main.os_id else None
    return brings is not None and brings.path == main.user_frame.path


def _doing(thread: ThreadStack, process: ProcessStacks, line: str) -> tuple[Activity, Frame | None]:
    inner = thread.frames[0]
    leaving = next((frame for frame in thread.frames if frame.function in _LEAVING), None)
    if leaving is not None and (thread.user_frame is None or leaving.function == "destroy_process_group"):
        return Activity.LEAVING, leaving
    loader = thread.inside(
        "torch/utils/data/dataloader.py", "_next_data", "_get_data", "_try_get_data", "__next__", "__iter__"
    )
    communication = _communication(thread)
    if loader is not None and communication is None:
        return Activity.DATA, loader
    if communication is not None:
        return communication
    saving = thread.inside("torch/serialization.py")
    if saving is not None:
        return Activity.CHECKPOINT, saving
    if "/torch/autograd/" in inner.path:
        return (Activity.COMPUTING if process.is_busy else Activity.BACKWARD), inner
    if inner.is_users and _HANDLE_LINE.search(line) and not process.is_busy:
        return Activity.HANDLE, inner
    if _DEVICE_LINE.search(line) and (inner.is_users or "/torch/cuda/" in inner.path) and not process.held_gil:
        return Activity.DEVICE, inner
    if "/torch/" in inner.path and process.is_busy:
        return Activity.COMPUTING, inner
    return Activity.USER, None


def _communication(thread: ThreadStack) -> tuple[Activity, Frame] | None:
    """torch's communicating function that the user's line has led to, None when the thread is in none."""
    found: Frame | None = None
    waits = False  # a checkpoint that gathers shards is a collective like any other
    for frame in thread.frames:  # innermost first: the last one found is the one the user called
        if frame.is_users:
            break
        if not any(part in frame.path for part in _COMMUNICATING):
            continue
        if frame.function in _INIT:
            return Activity.INIT, _outermost(thread, _INIT) or frame
        if frame.function in _NEW_GROUP:
            return Activity.NEW_GROUP, _outermost(thread, _NEW_GROUP) or frame
        waits = waits or frame.path.endswith(_COLLECTIVES)
        if "/torch/distributed/checkpoint/" in frame.path and not waits:
            return Activity.CHECKPOINT, frame
        if "c10d_logger" in frame.path or (
            found is not None and found.function in OPERATIONS and frame.function not in OPERATIONS
        ):
            continue
        found = frame
    if found is None or "/elastic/" in found.path:
        return None
    return Activity.COLLECTIVE, found


def _outermost(thread: ThreadStack, functions: frozenset[str]) -> Frame | None:
    return next(
        (frame for frame in reversed(thread.frames) if frame.function in functions and "/torch/" in frame.path), None
    )


def line_of(sources: Mapping[str, str], site: SourceLine) -> str:
    """One line of source, "" when the file is not there."""
    lines = sources.get(site.path, "").splitlines()
    return lines[site.line - 1] if 0 < site.line <= len(lines) else ""


def is_held_by_kernel(process: ProcessStacks) -> bool:
    """In uninterruptible sleep: a disk, a network file system or a driver does not answer."""
    return process.state == UNINTERRUPTIBLE and not process.frozen


_OF_CHILDREN = ("/subprocess.py", "/multiprocessing/", "/concurrent/futures/")
_CHILD_LINE = re.compile(r"\b(system|popen|wait[34]?|waitpid|communicate)\s*\(")


def waits_for_child(standing: RankActivity) -> bool:
    """Whether what a rank is in waits for another process, or for a pool of them."""
    thread = telling_thread(standing.process) if standing.process is not None else None
    paths = [frame.path for frame in thread.frames] if thread is not None else []
    return any(part in path for path in paths for part in _OF_CHILDREN) or bool(_CHILD_LINE.search(standing.line))
