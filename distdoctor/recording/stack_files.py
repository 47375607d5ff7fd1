"""Stacks that people have copied: what `py-spy dump` printed of each process, as text or JSON, and what faulthandler did.

A file says neither when it was written nor what the kernel knew, and often not even which rank it is of: that its name says, its
folder, the command line, or the order. What is not known stays unknown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from distdoctor.errors import NothingToInspect, UnreadableRecording
from distdoctor.recording import py_spy_dump
from distdoctor.recording.beside_dumps import at_their_lines, of_world
from distdoctor.recording.fault_dumps import begins_like_faults, fault_dumps
from distdoctor.recording.files import head_of, read_bytes
from distdoctor.recording.flight.dumps import NAMED_RANK
from distdoctor.recording.foreign_values import MOST_VALUES, values_in_json
from distdoctor.recording.last_training_line import last_training_line
from distdoctor.recording.py_spy_dump import LONGEST_LINE, StackDump
from distdoctor.recording.recording import Job, Recording, Trouble
from distdoctor.recording.source_line import SourceLine
from distdoctor.recording.stacks import UNTOLD, Frame, ProcessStacks, RankStacks, Stacks, ThreadStack
from distdoctor.recording.trace.layout import MOST_RANKS
from distdoctor.recording.trace.redaction import redacted_arguments

LAUNCHER = "copied stacks"
LARGEST_BYTES = 16 << 20  # a process of fifty threads prints some 50 KB; a second is enough for one MiB
MOST_FILES = 1 << 16
HEAD_BYTES = 8192
_WORKER_LOOP = ("torch/utils/data/_utils/worker.py", "_worker_loop")
_NUMBER = re.compile(r"\d{1,20}")
_LOOK = re.compile(r"(?:t|round|sample|look|snap|snapshot|take)[-_]?\d{1,20}", re.IGNORECASE)
_OF_WORKER = re.compile(r"worker|loader", re.IGNORECASE)
_NODE = re.compile(r"(?:node|host|pod|machine|server)[-_.]?\w{0,60}|\d{1,3}(?:\.\d{1,3}){3}", re.IGNORECASE)
# `--rank 3`, `RANK=3`: not the node's, and the local one only where there is one node.
_GIVEN_RANK = re.compile(r"(?<![\w-])(?:--?rank[ =]|RANK=|--?global[-_]rank[ =])(\d{1,7})(?!\d)")
_LOCAL_RANK = re.compile(r"(?<![\w-])(?:--?local[-_]rank[ =]|LOCAL_RANK=)(\d{1,7})(?!\d)")


@dataclass(frozen=True)
class _Copy:
    """One dump of one process: `rank` by its name, `node` and `look` by where it lies, `written_ns` as the file system has it."""

    dump: StackDump
    path: Path
    rank: int
    node: str
    look: str
    is_worker: bool
    written_ns: int


@dataclass(frozen=True)
class _Process:
    """One process in all of its dumps, the newest last."""

    copies: tuple[_Copy, ...]
    rank: int

    @property
    def dump(self) -> StackDump:
        return self.copies[-1].dump

    @property
    def is_worker(self) -> bool:
        return any(one.is_worker for one in self.copies)

    @property
    def is_launcher(self) -> bool:
        frames = [frame for thread in self.dump.threads for frame in thread.frames]
        return any("torch/distributed/elastic/agent/" in frame.path for frame in frames)


def looks_like_stacks(path: Path) -> bool:
    """Whether a file holds stacks and nothing else, by its first bytes. What faulthandler has printed stands in logs, too: there
    the name must say of which rank it is."""
    head = head_of(path, HEAD_BYTES)
    if begins_like_stacks(head):
        return True
    lines = head.decode("utf-8", "replace").splitlines()
    return begins_like_faults(lines) and NAMED_RANK.search(path.stem) is not None


def begins_like_stacks(head: bytes) -> bool:
    """Whether these first bytes are of py-spy's text or JSON."""
    if head.lstrip()[:1] == b"[":
        return b'"thread_id"' in head and b'"frames"' in head
    return py_spy_dump.looks_like_text(head.decode("utf-8", "replace").splitlines())


def read_stack_stream(stream: BinaryIO) -> Recording:
    """The recording in what py-spy prints of one process after the other, as it comes by the standard input.

    NothingToInspect: there is no stack in it. UnreadableRecording: it is longer than any stacks are, or broken JSON.
    """
    data = stream.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise UnreadableRecording(
            f"the standard input has sent more than {LARGEST_BYTES >> 20} MiB of stacks",
            way_out="Give the stacks of each rank in a file, all in one folder.",
        )
    try:
        dumps = dumps_in(data)
    except ValueError as trouble:
        raise UnreadableRecording(
            f"the standard input cannot be read as stacks: {trouble}",
            way_out="Send what `py-spy dump --pid PID` prints, with --json or without.",
        ) from None
    counted: dict[int, int] = {}
    copies = []
    for dump in dumps:
        again = counted[dump.pid] = counted.get(dump.pid, -1) + 1
        copies.append(_Copy(dump, Path(), dump.rank, "", f".{again}", _is_worker(dump), 0))
    return _recording_of(copies, [])


def read_stacks(paths: Sequence[Path]) -> Recording:
    """The recording in files of stacks, in whatever order they come. Files that cannot be read become troubles.

    NothingToInspect: there is no stack in any of them.
    """
    paths = sorted(paths)[:MOST_FILES]
    troubles: list[Trouble] = []
    base = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
    return _recording_of([copy for path in paths for copy in _copies_in(path, base, len(paths), troubles)], troubles)


def _recording_of(copies: Iterable[_Copy], troubles: list[Trouble]) -> Recording:
    processes = _with_ranks(_processes(copies), troubles)
    if not processes:
        words = troubles[0].what if troubles else "there are no stacks"
        raise NothingToInspect(words, way_out="Give what `py-spy dump --pid PID` prints of each rank, one file a rank.")
    stacks = _stacks(processes)
    frames = (frame for one in stacks.everybody() for thread in one.threads for frame in thread.frames)
    stacks = _under_whole_paths(stacks, {f.path for f in frames if f.is_users and f.path.startswith("/")})
    job = Job(world_size=max(stacks.ranks, default=-1) + 1, launcher=LAUNCHER, end_unseen=True)
    return Recording(job, {}, frozenset(), tuple(troubles), stacks=stacks)


def with_stacks(recording: Recording, seen: Recording) -> Recording:
    """A recording of something else that the same job left, with the stacks that somebody took of it."""
    assert seen.stacks is not None
    world = max(recording.world_size, seen.world_size)
    known = {site.path for log in recording.ranks.values() for text in log.texts if (site := SourceLine.parse(text))}
    known |= {clue.site.path for clue in recording.clues if clue.site}
    stacks = _under_whole_paths(_both(recording.stacks, seen.stacks), known)
    if recording.ranks:
        stacks = replace(stacks, elsewhere=tuple(rank for rank in range(world) if rank not in stacks.ranks))
    recording = at_their_lines(of_world(recording, world), stacks)
    return replace(
        recording,
        job=replace(recording.job, world_size=world),
        stacks=stacks,
        troubles=(*recording.troubles, *seen.troubles),
    )


def _both(printed: Stacks | None, copied: Stacks) -> Stacks:
    """The stacks that somebody copied, and of other ranks those that they have printed into the job's log."""
    if printed is None:
        return copied
    ranks = dict(sorted({**printed.ranks, **copied.ranks}.items()))
    elsewhere = tuple(rank for rank in {*printed.elsewhere, *copied.elsewhere} if rank not in ranks)
    unranked = (*copied.unranked, *printed.unranked)
    return replace(copied, ranks=ranks, elsewhere=elsewhere, unranked=unranked)


def went_on(seen: Recording, log: Path, files: Iterable[Path]) -> Recording:
    """The stacks with the last line about training in the job's log, where that was printed after the last of them was taken.

    Of a copied file the time is often that of the copy. A log whose last line has the time at which it was written is none, and
    stacks that seem older than such a line are so: copying makes files younger only.
    """
    last = last_training_line(log)
    newest = max(map(_written_ns, files), default=0)
    if seen.stacks is None or last is None or last.at_ns <= newest:
        return seen
    return replace(seen, stacks=replace(seen.stacks, later=last.words))


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


# --- one file ------------------------------------------------------------------------------------------------------------------


def _copies_in(path: Path, base: Path, files: int, troubles: list[Trouble]) -> Iterator[_Copy]:
    try:
        dumps = dumps_in(read_bytes(path, LARGEST_BYTES))
    except (UnreadableRecording, ValueError) as trouble:
        troubles.append(Trouble(f"{path} cannot be read as stacks: {trouble}"))
        return
    folders = path.parent.relative_to(base).parts
    most = 8 + 4 * files  # a larger number is that of a process, or a day
    node = next((part for part in folders if _NODE.fullmatch(part)), "")
    pids = {str(dump.pid) for dump in dumps}
    alone = len({(dump.pid, dump.identity) for dump in dumps if not _is_worker(dump)}) < 2
    rank = _rank_in_name(path, folders, pids, most) if alone else -1
    look = _look_of(path, [part for part in folders if part != node], rank, pids)
    counted: dict[tuple[int, str], int] = {}
    for dump in dumps:
        again = counted[dump.pid, dump.identity] = counted.get((dump.pid, dump.identity), -1) + 1
        worker = _is_worker(dump) or (alone and _OF_WORKER.search(path.stem) is not None)
        yield _Copy(dump, path, rank, node, f"{look}.{again}", worker, _written_ns(path))


def dumps_in(data: bytes) -> list[StackDump]:
    """The processes in a file of py-spy's or faulthandler's.

    ValueError: it is JSON, and not py-spy's.
    """
    text = data.decode("utf-8", "replace")
    if text.lstrip()[:1] == "[":
        return list(_in_json(text))
    lines = [line[:LONGEST_LINE] for line in text.splitlines()]
    if begins_like_faults(lines):
        return [one.stacks for one in fault_dumps((n, line, -1, "") for n, line in enumerate(lines, 1) if line.strip())]
    return list(py_spy_dump.of_text(lines, NAMED_RANK))


def _in_json(text: str) -> Iterator[StackDump]:
    """One document of each process, one after the other where several were written into one file."""
    if values_in_json(text) > MOST_VALUES:
        raise ValueError("it is larger than what py-spy writes")
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        try:
            content, at = decoder.raw_decode(text, at)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        yield from py_spy_dump.of_json(content)
        while at < len(text) and text[at].isspace():
            at += 1


def _is_worker(dump: StackDump) -> bool:
    return any(thread.inside(*_WORKER_LOOP) is not None for thread in dump.threads)


def _rank_in_name(path: Path, folders: Sequence[str], pids: set[str], most: int) -> int:
    """The rank that the name of a file or of a folder around it says, -1 where none does. A number alone may be a pid's, or count
    looks; torchrun's --log-dir has a folder for each rank."""
    for name in (path.stem, *reversed(folders)):
        ranks = {int(number) for number in NAMED_RANK.findall(name)}
        if len(ranks) == 1:
            rank = ranks.pop()
            return rank if rank < MOST_RANKS else -1
    numbers = [number for number in _NUMBER.findall(path.stem) if number not in pids]
    numbers = numbers if len(numbers) == 1 and _LOOK.fullmatch(path.stem) is None else []
    numbers += [folder for folder in reversed(folders) if folder.isdecimal()]
    return int(numbers[0]) if numbers and len(numbers[0]) < 8 and int(numbers[0]) < most else -1


def _look_of(path: Path, folders: Sequence[str], rank: int, pids: set[str]) -> str:
    """What tells a second look at a process from the first: one more number in its name or in that of a folder."""
    by_word = NAMED_RANK.search(path.stem) is not None
    *above, name = (NAMED_RANK.sub("", part) for part in (*folders, path.stem))
    numbers = [number for number in _NUMBER.findall(name) if number not in pids]
    if not by_word and numbers and len(numbers[-1]) < 8 and int(numbers[-1]) == rank:
        numbers.pop()
    of_folders = [number for part in above if part != str(rank) for number in _NUMBER.findall(part)]
    return ".".join((*of_folders, *numbers))


# --- all files -----------------------------------------------------------------------------------------------------------------


def _processes(copies: Iterable[_Copy]) -> list[_Process]:
    """The copies by the process that they are of. Those that are of one look are one: text and JSON, or a second file."""
    found: dict[tuple[object, ...], list[_Copy]] = {}
    copies = list(copies)
    pids: dict[tuple[str, int], set[int]] = {}
    for copy in copies:
        if copy.dump.pid and copy.rank >= 0 and not copy.is_worker:
            pids.setdefault((copy.node, copy.rank), set()).add(copy.dump.pid)
    for copy in copies:
        known = pids.get((copy.node, copy.rank), set()) if not copy.is_worker and not copy.dump.pid else set()
        if len(known) == 1:  # faulthandler and py-spy have looked at the same rank
            copy = _under_pid(copy, next(iter(known)))
        dump = copy.dump
        of_file = str(copy.path) if copy.rank < 0 else ""
        who = (copy.node, dump.pid) if dump.pid else (copy.node, copy.rank, of_file, dump.identity)
        found.setdefault(who, []).append(copy)
    return [one for copies in found.values() for one in _of_one_pid(copies)]


def _under_pid(copy: _Copy, pid: int) -> _Copy:
    threads = tuple(replace(thread, os_id=pid) if not thread.os_id else thread for thread in copy.dump.threads)
    return replace(copy, dump=replace(copy.dump, pid=pid, threads=threads), look=f"{copy.look} by faulthandler")


def _of_one_pid(copies: Sequence[_Copy]) -> Iterator[_Process]:
    """Containers number their processes alike: where names say different ranks, these are different processes."""
    ranks = sorted({copy.rank for copy in copies if copy.rank >= 0})
    for rank in ranks if len(ranks) > 1 else [-1]:
        mine = [copy for copy in copies if copy.rank == rank or len(ranks) < 2]
        looks: dict[str, _Copy] = {}
        for copy in mine:
            best = looks.get(copy.look)
            looks[copy.look] = max(copy, best, key=_telling) if best is not None else copy
        ordered = sorted(looks.values(), key=lambda copy: (_natural(copy.look), copy.written_ns))
        yield _Process(tuple(ordered), ranks[0] if len(ranks) == 1 else rank)


def _telling(copy: _Copy) -> tuple[bool, bool, int]:
    arguments = any(frame.arguments for thread in copy.dump.threads for frame in thread.frames)
    return arguments, copy.dump.has_whole_paths, copy.written_ns


def _natural(words: str) -> list[tuple[int, str]]:
    """`t2` before `t10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", words)]


def _with_ranks(processes: list[_Process], troubles: list[Trouble]) -> list[_Process]:
    """The processes with the ranks that are known by anything but their names, in the end by their order."""
    mains = [one for one in processes if not one.is_worker and not one.is_launcher]
    nodes = {one.copies[0].node for one in mains}
    taken = [one.rank for one in mains if one.rank >= 0]
    if len(nodes) > 1 and len(set(taken)) < len(taken):  # each node counts its own from 0
        ordered = sorted(mains, key=lambda one: (_natural(one.copies[0].node), one.rank))
        return _in_order(ordered, processes, troubles, "the names of the files count the ranks of each node")
    for ways in (_by_command, _by_frames):
        if all(one.rank < 0 for one in mains):
            told = [ways(one) for one in mains]
            if len(set(told)) == len(told) and min(told, default=-1) >= 0 and (ways is _by_frames or len(nodes) < 2):
                processes = [replace(one, rank=told[mains.index(one)]) if one in mains else one for one in processes]
                mains = [one for one in processes if not one.is_worker and not one.is_launcher]
    unknown = [one for one in mains if one.rank < 0]
    anonymous = any(not one.dump.pid for one in unknown) and len({one.copies[0].path for one in unknown}) < len(unknown)
    if unknown and len(unknown) == len(mains) and not anonymous:
        ordered = sorted(mains, key=lambda one: (_natural(one.copies[0].node), one.dump.pid, one.copies[0].path))
        why = "neither names nor command lines say which rank the stacks are of" if len(mains) > 1 else ""
        return _in_order(ordered, processes, troubles, why)
    return processes


def _in_order(ordered: list[_Process], everybody: list[_Process], troubles: list[Trouble], why: str) -> list[_Process]:
    if why:
        troubles.append(Trouble(f"{why}: they are numbered in the order of nodes and process ids"))
    numbers = {id(one): rank for rank, one in enumerate(ordered)}
    renamed = {(one.copies[0].node, one.rank): numbers[id(one)] for one in ordered}
    return [
        replace(
            one, rank=numbers.get(id(one), renamed.get((one.copies[0].node, one.rank), -1) if one.rank >= 0 else -1)
        )
        for one in everybody
    ]


def _by_command(one: _Process) -> int:
    found = _GIVEN_RANK.search(one.dump.command) or _LOCAL_RANK.search(one.dump.command)
    return int(found[1]) if found else -1


def _by_frames(one: _Process) -> int:
    return next((copy.dump.rank for copy in one.copies if 0 <= copy.dump.rank < MOST_RANKS), -1)


def _stacks(processes: Sequence[_Process]) -> Stacks:
    by_pid = {(one.copies[0].node, one.dump.pid): one for one in processes if one.dump.pid}
    mains: dict[int, _Process] = {}
    for one in processes:
        if one.rank >= 0 and not one.is_worker and not one.is_launcher:
            known = mains.get(one.rank)
            newer = known is None or one.copies[-1].written_ns > known.copies[-1].written_ns
            mains[one.rank] = one if newer else known  # type: ignore[assignment]
    workers: dict[int, list[ProcessStacks]] = {}
    unranked = []
    for one in processes:
        if one.is_worker:
            parent = by_pid.get((one.copies[0].node, one.dump.parent))
            rank = one.rank if one.rank >= 0 else parent.rank if parent is not None else -1
            if rank < 0 and len(mains) == 1:
                rank = next(iter(mains))
            if rank >= 0:
                workers.setdefault(rank, []).append(_seen(one))
                continue
        if one.rank < 0 and not one.is_launcher:
            unranked.append(_seen(one))
    ranks = {
        rank: RankStacks(
            rank,
            _seen(mains[rank]) if rank in mains else None,
            tuple(sorted(workers.get(rank, ()), key=lambda w: w.pid)),
        )
        for rank in sorted({*mains, *workers})
    }
    launcher = next((_seen(one) for one in processes if one.is_launcher), None)
    return Stacks(
        {rank: seen for rank, seen in ranks.items() if seen.process is not None},
        elsewhere=tuple(rank for rank in range(max(ranks, default=-1) + 1) if rank not in mains),
        launcher=launcher if ranks else None,
        copies=min((len(one.copies) for one in mains.values()), default=1),
        unranked=tuple(unranked),
    )


def _seen(one: _Process) -> ProcessStacks:
    dumps = [copy.dump for copy in one.copies]
    last = dumps[-1]
    running = [dump.running for dump in dumps]
    shapes = {_shape(dump) for dump in dumps}
    return ProcessStacks(
        last.pid,
        " ".join(redacted_arguments(last.command.split())),
        UNTOLD if last.running is None else "R" if last.running else "S",
        last.threads,
        moved=len(shapes) > 1,
        # py-spy looked once, and whoever computes may be caught between two pieces of work.
        ready_share=1.0 if any(running) else 0.0,
        worker=_worker_number(last),
        copied=True,
        printed_by=last.printer,
        lasting=_lasting([_main(dump).frames for dump in dumps]) if len(dumps) > 1 else None,
    )


def _main(dump: StackDump) -> ThreadStack:
    nobody = ThreadStack(dump.pid, ())
    return next((thread for thread in dump.threads if thread.os_id == dump.pid), next(iter(dump.threads), nobody))


def _shape(dump: StackDump) -> tuple[tuple[str, int], ...]:
    """Where the main thread is, alike in text and JSON."""
    frames = _main(dump).frames
    return tuple((frame.function, frame.line) for frame in frames if not frame.is_native)


def _lasting(stacks: Sequence[Sequence[Frame]]) -> Frame | None:
    """The innermost frame of the user's that the main thread was in in every look, as it was in the last one."""
    found = None
    for calls in zip(*(reversed(frames) for frames in stacks), strict=False):
        if len({frame.function for frame in calls}) > 1:
            break
        found = calls[-1] if calls[-1].is_users and calls[-1].function[:1] != "<" else found
        if len({frame.line for frame in calls}) > 1:  # from here on these are different calls
            break
    return found


def _worker_number(dump: StackDump) -> int:
    for thread in dump.threads:
        frame = thread.inside(*_WORKER_LOOP)
        if frame is not None:
            number = frame.arguments.get("worker_id", "")
            return int(number) if number.isdecimal() and len(number) < 8 else 0
    return -1


# --- beside something else ------------------------------------------------------------------------------------------------------


def _under_whole_paths(stacks: Stacks, known: Iterable[str]) -> Stacks:
    """The stacks with the whole paths of files that something else of the job names, where only one ends in the short one."""
    by_name: dict[str, set[str]] = {}
    for path in known:
        by_name.setdefault(path.rpartition("/")[2], set()).add(path)

    def whole(frame: Frame) -> Frame:
        if not frame.is_users or frame.path.startswith(("/", "<")):
            return frame
        fitting = [path for path in by_name.get(frame.path.rpartition("/")[2], ()) if path.endswith(f"/{frame.path}")]
        return replace(frame, path=fitting[0]) if len(fitting) == 1 else frame

    def process(one: ProcessStacks) -> ProcessStacks:
        threads = tuple(replace(t, frames=tuple(map(whole, t.frames))) for t in one.threads)
        return replace(one, threads=threads, lasting=whole(one.lasting) if one.lasting is not None else None)

    ranks = {
        rank: replace(
            seen,
            process=process(seen.process) if seen.process is not None else None,
            workers=tuple(map(process, seen.workers)),
        )
        for rank, seen in stacks.ranks.items()
    }
    return replace(stacks, ranks=ranks, unranked=tuple(map(process, stacks.unranked)))


def of_dumps(dumps: Sequence[StackDump], troubles: list[Trouble]) -> Stacks | None:
    """The stacks in what was dumped into one log; None where there are none. `troubles` grows by doubts whose they are."""
    copies = [
        _Copy(dump, Path(), dump.rank, "", f"{at:09}", _is_worker(dump), 0)
        for at, dump in enumerate(dumps)
        if dump.threads
    ]
    processes = _processes(copies)
    if all(one.dump.pid for one in processes):  # else nothing tells the processes of one log apart
        processes = _with_ranks(processes, troubles)
    return _stacks(processes) if copies else None
