"""Look at the processes of a job several times, and put together what each of them does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from distdoctor.attach import permission, py_spy, pystack
from distdoctor.attach.kernel import Facts, facts_of
from distdoctor.attach.links import dead_links
from distdoctor.attach.processes import FoundJob, HostProcesses, Process
from distdoctor.attach.py_spy import PySpyDump
from distdoctor.attach.waits import wait_of
from distdoctor.recording.stacks import Frame, Link, ProcessStacks, RankStacks, Stacks, ThreadStack

# A main thread that the kernel let run for less than this part of the time only woke up to look whether it may go on.
AWAKE_SHARE = 0.05
# A loop of a few lines is often caught at the same one twice. Whoever keeps the GIL at one line is looked at so often again.
MORE_SAMPLES = 8
MORE_SECONDS = 0.04  # between two of them
_IN_ANOTHER = (
    "<listcomp>",
    "<setcomp>",
    "<dictcomp>",
    "<genexpr>",
)  # frames of their own up to Python 3.11, no functions


@dataclass(frozen=True)
class Manner:
    """How to look. `interval_seconds` lie between two samples; see `Stacks.patience_seconds`. `begins` is called when it is known
    where to look, and py-spy is about to be asked: from then on there is time for other work."""

    samples: int = 2
    interval_seconds: float = 0.5
    patience_seconds: float = 10.0
    native: bool = False
    user_locals: bool = False
    begins: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class _Sample:
    at: float
    facts: Mapping[int, Facts]
    dumps: Mapping[int, PySpyDump]


def look_at(jobs: Sequence[FoundJob], host: HostProcesses, manner: Manner) -> list[Stacks]:
    """What every process of these jobs does, the jobs in the same order. All of them are sampled together."""
    pids: dict[int, Process] = {}
    for job in jobs:
        for process in _processes(job, host):
            pids[process.pid] = process
    samples = _samples([*pids], [pid for pid, process in pids.items() if process.is_python], manner)
    native, cpp_threads = _native_frames(samples[-1], manner)
    links: dict[int, tuple[Link, ...]] = {}
    for job in jobs:
        links |= dead_links({process.pid: rank for rank, process in job.ranks.items()})
    seen = {
        pid: replace(
            _process(process, samples, native.get(pid)),
            cpp_threads=cpp_threads.get(pid, ()),
            links=links.get(pid, ()),
        )
        for pid, process in pids.items()
    }
    return [_stacks(job, host, seen, samples, manner) for job in jobs]


def _processes(job: FoundJob, host: HostProcesses) -> Iterable[Process]:
    yield from ([job.launcher] if job.launcher else [])
    for process in job.ranks.values():
        yield process
        yield from (child for child in host.descendants(process.pid) if not child.is_machinery)


def _samples(pids: Sequence[int], pythons: Sequence[int], manner: Manner) -> list[_Sample]:
    taken: list[_Sample] = []
    for number in range(max(1, manner.samples)):
        if number:
            time.sleep(max(0.0, taken[-1].at + manner.interval_seconds - time.monotonic()))
        at = time.monotonic()
        facts = {pid: found for pid in pids if (found := facts_of(pid)) is not None}
        asleep = _asleep_since(taken[-1], facts) if taken else {}
        asked = [pid for pid in pythons if pid in facts and pid not in asleep]
        manner.begins()
        taken.append(_Sample(at, facts, asleep | py_spy.dump_all(asked, user_locals=manner.user_locals)))
    return taken + _more_samples(taken, pids)


def _more_samples(taken: Sequence[_Sample], pids: Sequence[int]) -> list[_Sample]:
    """Of processes in which the GIL was kept at one and the same line: one long call, or a loop that was met there by chance?"""
    more: list[_Sample] = []
    suspects = [pid for pid in taken[-1].dumps if _keeps_the_gil(taken, pid)] if len(taken) > 1 else []
    while suspects and len(more) < MORE_SAMPLES:
        time.sleep(MORE_SECONDS)
        facts = {pid: found for pid in pids if (found := facts_of(pid)) is not None}
        dumps = {**taken[-1].dumps, **py_spy.dump_all([pid for pid in suspects if pid in facts])}
        more.append(_Sample(time.monotonic(), facts, dumps))
        suspects = [pid for pid in suspects if _keeps_the_gil([*taken, *more], pid)]
    return more


def _keeps_the_gil(samples: Sequence[_Sample], pid: int) -> bool:
    dumps = [sample.dumps[pid] for sample in samples if pid in sample.dumps]
    at_one_line = len({_shape(dump, pid) for dump in dumps}) == 1 and all(_main_holds_gil(dump, pid) for dump in dumps)
    return at_one_line or _gil_thread(dumps, pid) is not None


def _native_frames(last: _Sample, manner: Manner) -> tuple[dict[int, PySpyDump], dict[int, tuple[ThreadStack, ...]]]:
    """The stacks with their C++ frames, and the threads that have no others where pystack is installed.

    Read after all samples: the freeze wakes a thread that stood still for hours.
    """
    if not manner.native:
        return {}, {}
    # What does not run cannot be paused for its C++ frames: py-spy would wait for it.
    asked = [pid for pid in last.dumps if not (last.facts[pid].frozen or last.facts[pid].state in "TtD")]
    dumps = py_spy.dump_all(asked, native=True, user_locals=manner.user_locals)
    return {pid: dump for pid, dump in dumps.items() if not dump.trouble}, pystack.cpp_threads_of(asked)


def _asleep_since(before: _Sample, facts: Mapping[int, Facts]) -> dict[int, PySpyDump]:
    """The stacks of main threads that the kernel has not let run since: they cannot have changed, and need not be read again."""
    return {
        pid: dump
        for pid, dump in before.dumps.items()
        if not dump.trouble
        and pid in facts
        and facts[pid].ran_ns >= 0
        and (facts[pid].ran_ns, facts[pid].started) == (before.facts[pid].ran_ns, before.facts[pid].started)
    }


def _process(process: Process, samples: Sequence[_Sample], native: PySpyDump | None) -> ProcessStacks:
    """One process over all samples."""
    pid = process.pid
    dumps = [sample.dumps[pid] for sample in samples if pid in sample.dumps]
    readable = [dump for dump in dumps if not dump.trouble]
    first, last = samples[0].facts.get(pid), samples[-1].facts.get(pid)
    found = ProcessStacks(pid, process.command, is_python=process.is_python)
    if first is None or last is None or not process.is_still_there:  # asked after all that was read of it
        return replace(found, state="X", trouble="it ended while we looked")
    if readable:
        found = replace(found, threads=(native or readable[-1]).threads)
    elif process.is_python and dumps:
        worst = dumps[-1]
        found = replace(found, trouble=worst.trouble, is_python=worst.is_python)
        found = replace(found, way_in=permission.way_in(pid) if worst.refused else worst.way_in)
    seconds = max(samples[-1].at - samples[0].at, 1e-9)
    ran = (
        (last.ran_ns - first.ran_ns) / 1e9
        if min(first.ran_ns, last.ran_ns) >= 0
        else last.cpu_seconds - first.cpu_seconds
    )
    changed = len({_shape(dump, pid) for dump in readable}) > 1
    return replace(
        found,
        state=last.state,
        moved=changed or (ran / seconds > AWAKE_SHARE and not readable),
        cpu_share=max(0.0, last.cpu_seconds - first.cpu_seconds, ran) / seconds if len(samples) > 1 else 0.0,
        ready_share=_ready_share(first, last, seconds) if len(samples) > 1 else 0.0,
        still_seconds=_still(last, seconds if ran == 0 and last.state != "R" and len(samples) > 1 else 0.0),
        age_seconds=max(0.0, time.time() - process.started),
        bytes_moved=last.bytes_moved - first.bytes_moved,
        wchan=last.wchan,
        syscall=last.syscall,
        tracer=last.tracer,
        frozen=last.frozen,
        waits_for=wait_of(pid) if process.is_python and not changed else None,
        worker=_worker(found.threads),
        held_gil=len(readable) > 1 and all(_main_holds_gil(dump, pid) for dump in readable),
        gil_thread=_gil_thread(readable, pid) if ran > 0 else None,  # who waits for the GIL looks for it every 5 ms
        lasting=_lasting(readable, pid),
    )


def _ready_share(first: Facts, last: Facts, seconds: float) -> float:
    """The part of the time in which the busiest thread ran, or would have run had a core been free."""
    ready = (now - first.ready_ns[thread] for thread, now in last.ready_ns.items() if thread in first.ready_ns)
    return max(ready, default=0) / 1e9 / seconds


def _still(facts: Facts, at_least: float) -> float | None:
    """How long ago the main thread last ran, as it was when `facts` were read: what our own look took is no standstill."""
    if facts.still_seconds is not None:
        return max(at_least, facts.still_seconds)
    return at_least or None


def _main(threads: Iterable[ThreadStack], pid: int) -> ThreadStack | None:
    return next((thread for thread in threads if thread.os_id == pid), None)


def _shape(dump: PySpyDump, pid: int) -> tuple[tuple[str, str, int], ...]:
    main = _main(dump.threads, pid)
    return tuple((frame.path, frame.function, frame.line) for frame in main.frames) if main else ()


def _main_holds_gil(dump: PySpyDump, pid: int) -> bool:
    main = _main(dump.threads, pid)
    return main is not None and main.holds_gil


def _gil_thread(dumps: Sequence[PySpyDump], pid: int) -> ThreadStack | None:
    """The other thread that held the GIL at the same line in every sample: one call that never lets it go."""
    holders = [next((one for one in dump.threads if one.holds_gil and one.os_id != pid), None) for dump in dumps]
    places = {(one.os_id, one.frames[0].site) if one is not None and one.frames else None for one in holders}
    return holders[-1] if len(holders) > 1 and len(places) == 1 and None not in places else None


def _lasting(dumps: Sequence[PySpyDump], pid: int) -> Frame | None:
    """The innermost frame of the user's in the main thread that every sample was inside, as it was in the last one."""
    mains = [_main(dump.threads, pid) for dump in dumps]
    found = None
    for calls in zip(*(reversed(main.frames if main is not None else ()) for main in mains), strict=False):
        if len(calls) < 2 or len({(frame.path, frame.function) for frame in calls}) > 1:
            break
        found = calls[-1] if calls[-1].is_users and calls[-1].function not in _IN_ANOTHER else found
        if len({frame.line for frame in calls}) > 1:  # from here on these are different calls
            break
    return found


def _worker(threads: Iterable[ThreadStack]) -> int:
    """The number of a DataLoader worker, -1 for what is none."""
    for thread in threads:
        frame = thread.inside("torch/utils/data/_utils/worker.py", "_worker_loop")
        if frame is not None:
            number = frame.arguments.get("worker_id", "")
            return int(number) if number.isdigit() else 0
    return -1


def _stacks(
    job: FoundJob, host: HostProcesses, seen: Mapping[int, ProcessStacks], samples: Sequence[_Sample], manner: Manner
) -> Stacks:
    ranks = {rank: _rank(rank, process, host, seen) for rank, process in job.ranks.items()}
    ranks |= {rank: RankStacks(rank, None) for rank in job.absent}
    return Stacks(
        ranks=dict(sorted(ranks.items())),
        elsewhere=job.elsewhere,
        launcher=seen.get(job.launcher.pid) if job.launcher else None,
        observed_seconds=samples[-1].at - samples[0].at,
        patience_seconds=manner.patience_seconds,
    )


def _rank(rank: int, process: Process, host: HostProcesses, seen: Mapping[int, ProcessStacks]) -> RankStacks:
    others = [seen[child.pid] for child in host.descendants(process.pid) if child.pid in seen]
    workers = sorted((one for one in others if one.worker >= 0), key=lambda one: (one.worker, one.pid))
    return RankStacks(rank, seen[process.pid], tuple(workers), tuple(one for one in others if one.worker < 0))
