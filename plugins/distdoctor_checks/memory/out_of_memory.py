"""
DD408 out-of-memory: a rank could not allocate memory, or the kernel killed it because memory ran out.

What it means    An allocation failed, on the device or in host memory, and the exception ended the rank; or the kernel killed
                 it because its cgroup's limit was reached or the host ran out of memory. The other ranks fail afterwards
                 because a peer is gone, usually louder.
Why it hurts     The job is over, and the rank, the phase, the line and the requested size are scattered over several logs.
How we know      The exception itself reports the failed allocation and its size. The phase and the line come from its
                 traceback; the sizes of parameters, gradients and optimizer state at that moment were recorded. For a rank that
                 died of SIGKILL, the kernel's own count of such kills in its cgroup (memory.events, v1: memory.oom_control)
                 rose as it died; if only the host counts (/proc/vmstat), it is likely. Its line is the one at which it was seen
                 when memory ran low, otherwise the last one on record.
What to do       The fix depends on the phase and on what was held; the first thing to try comes first.
When it is fine  Never. A script that catches the exception and continues with a smaller batch is not reported.
                 An exception that a `raise` of the program itself makes, without an allocator's words, shows no failed
                 allocation: DD110 tells it.
Source           c10/core/impl/alloc_cpu.cpp, c10/cuda/CUDACachingAllocator.cpp; torch.cuda memory management notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.ending import Ending
from distdoctor.diagnosis.hang.in_logs import LogFacts, from_own_error
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import by_site
from distdoctor.diagnosis.memory.memory import Memory, PhasePeak, RankMemory, Shortage, mib
from distdoctor.diagnosis.memory.oom_message import DEVICE, HOST, Request, request_of, tells_of_an_allocator
from distdoctor.diagnosis.source.keeping_line import keeping_line
from distdoctor.diagnosis.source.rank_guard import statement_at
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankEnd, Recording, SourceLine
from distdoctor.recording.trace.events import OutOfMemory
from distdoctor.recording.trace.layout import Phase

FRAGMENTED = 0.25  # of what the allocator has reserved
MOST_OF_IT = 0.5  # of what memory grows by, that a variable must grow by to be blamed


@check(
    "DD408", "out-of-memory", severity=ERROR, family="hang", stands_alone=True, stalls=Stalls.FOREVER, specificity=30
)
def examine(verdict: Verdict | None, memory: Memory | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None:
        yield from _by_log(log)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.FAILED):
        end = verdict.recording.job.ends.get(incident.ranks[0])
        if end is not None and end.killed_for_memory and incident.ending is not None and incident.ending.signal:
            own = memory.ranks.get(incident.ending.rank) if memory is not None else None
            yield _killed(verdict, incident, incident.ending, end, own)
            continue
        request = request_of(incident.ending.words) if incident.ending is not None else None
        if request is not None and incident.ending is not None and not _is_its_own(verdict, incident.ending):
            own = memory.ranks.get(incident.ending.rank) if memory is not None else None
            yield _finding(verdict, incident, incident.ending, request, own)


def _is_its_own(verdict: Verdict, ending: Ending) -> bool:
    """Whether a `raise` of the program made the exception (of a limit it keeps itself), and no allocator speaks in it."""
    raised = bool(ending.site) and statement_at(verdict.recording.sources, ending.site).startswith("raise ")
    return raised and not tells_of_an_allocator(ending.words)


def _by_log(log: LogFacts) -> Iterator[Finding]:
    request = request_of(log.own_error.words) if log.own_error is not None else None
    if request is not None:
        amount = f"{mib(request.asked)} of {request.of}" if request.asked else request.of
        others = f", of which other processes hold {mib(request.held_by_others)}" if _is_held_by_others(request) else ""
        yield from_own_error(log, f"could not allocate {amount}{others}", next(_cures(request, None, "")))


def _is_held_by_others(request: Request) -> bool:
    """Whether the device is full of what other processes hold."""
    return request.held_by_others > max(request.used, request.asked)


def _finding(verdict: Verdict, incident: Incident, ending: Ending, request: Request, own: RankMemory | None) -> Finding:
    shortage = own.shortage if own is not None else None
    place = ending.site or SourceLine()
    phase = shortage.phase if shortage is not None else ""
    amount = f"{mib(request.asked)} of {request.of}" if request.asked else request.of
    line = statement_at(verdict.recording.sources, place) if place else ""
    step = own.last("step") + 1 if own is not None and len(own.rows) else 0
    when = f" in step {step}" if step and phase != "setting up" else ""
    stuck = [call for wait in incident.waiting for call in wait.calls]
    echoes = sorted(rank for rank, other in verdict.endings.items() if other.victim and rank not in incident.ranks)
    return Finding(
        title=f"{named(incident.ranks)} could not allocate {amount}{when}" + (f", {phase}" if phase else ""),
        ranks=incident.ranks,
        confidence=CERTAIN,
        stalls=incident.stalls,
        place=place,
        places=(
            *(
                [Place(place, incident.ranks, f"could not allocate {amount}" + (f": `{line[:80]}`" if line else ""))]
                if place
                else []
            ),
            *by_site(verdict, stuck),
        ),
        evidence={
            "exception": ending.words,
            "asked_bytes": request.asked,
            "of": request.of,
            "phase": phase,
            "step": step,
            "held": _held(own),
            "limit_bytes": (shortage.limit if shortage is not None else 0) or request.capacity,
            "traceback": ending.traceback,
            "failed_after_it": echoes,
        },
        why=_why(ending, request, own, shortage, echoes),
        prescriptions=tuple(_cures(request, own, phase)),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _killed(verdict: Verdict, incident: Incident, ending: Ending, end: RankEnd, own: RankMemory | None) -> Finding:
    """The kernel ended it, without a word of its own."""
    doing = own.doing if own is not None and len(own.rows) else None
    timeline = verdict.facts.timelines.get(ending.rank)
    began = (doing.began_at if doing else SourceLine()) or (
        timeline.last_site if timeline is not None else SourceLine()
    )
    place = SourceLine.parse(end.last_line) or began
    when = "" if doing is None else f" in step {doing.step}, {doing.phase.word}" if doing.phase else ", setting up"
    stuck = [call for wait in incident.waiting for call in wait.calls]
    echoes = sorted(rank for rank, other in verdict.endings.items() if other.victim and rank not in incident.ranks)
    of_host = end.kernel_counter.endswith("vmstat")
    growth, steps = own.growth() if own is not None else (0.0, 0)
    kept = _kept(verdict, incident, own, growth)
    words = [
        f"{end.kernel_counter} counts {end.kernel_kills} kill{'s' if end.kernel_kills != 1 else ''} at that time"
        + (", of any process on the host" if of_host else ""),
        *(
            [f"after step {own.last('step')} it had {mib(own.last('rss'))} resident"]
            if own and own.last("step")
            else []
        ),
        *([f"{mib(growth)} more in each of the last {steps} steps"] if growth else []),
        *([kept.role] if kept else []),
        *(["its model held " + ", ".join(model)] if (model := _model(own)) else []),
        *([f"{named(echoes)} failed afterwards because a peer was gone"] if echoes else []),
    ]
    limit = (
        f"its cgroup's limit of {mib(end.memory_limit)} was reached" if end.memory_limit else "the host had none left"
    )
    return Finding(
        title=f"{named(incident.ranks)} was killed by the kernel because memory ran out{when}: {limit}",
        ranks=incident.ranks,
        confidence=LIKELY if of_host else CERTAIN,
        stalls=incident.stalls,
        place=kept.site if kept else place,
        places=(
            *([kept] if kept else []),
            *([Place(place, incident.ranks, _last_at(verdict, end, doing, place))] if place else []),
            *by_site(verdict, stuck),
        ),
        evidence={
            "signal": ending.signal,
            "kernel_kills": end.kernel_kills,
            "counter": end.kernel_counter,
            "limit_bytes": end.memory_limit,
            "of": HOST,
            "phase": doing.phase.word if doing else "",
            "step": doing.step if doing else 0,
            "held": _held(own),
            "bytes_per_step": round(growth),
            "failed_after_it": echoes,
        },
        why="; ".join(words),
        prescriptions=tuple(_cures_of_killed(own, doing, growth)),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _kept(verdict: Verdict, incident: Incident, own: RankMemory | None, growth: float) -> Place | None:
    """The line that keeps more in each step, when that is what memory grew by."""
    found = own.fastest_growing() if own is not None and growth else None
    if found is None or found[1] < MOST_OF_IT * growth:
        return None
    holder, size = found
    keeping = keeping_line(verdict.recording.sources, holder.site, holder.label)
    site = keeping.site if keeping is not None else holder.site
    return Place(site, incident.ranks, f"`{holder.label}` keeps {mib(size)} more every step") if site else None


def _last_at(verdict: Verdict, end: RankEnd, doing: PhasePeak | None, place: SourceLine) -> str:
    line = statement_at(verdict.recording.sources, place)
    statement = f": `{line[:80]}`" if line else ""
    if end.last_line:
        return f"seen here when memory ran low, {end.last_line_ns / 1e9:.1f} s before its end{statement}"
    if doing is None or not doing.began_at:
        return f"last seen here{statement}"
    return f"the last line on record, where its {doing.phase.word} began{statement}"


def _cures_of_killed(own: RankMemory | None, doing: PhasePeak | None, growth: float) -> Iterator[Prescription]:
    """The next thing to try first: what grows, the batch on a CPU, else what processes hold beside the device."""
    if growth:
        yield Prescription(
            "bound-what-is-kept",
            change="something grows in every step: free or bound it; a larger limit only delays the failure",
            effect=f"{mib(growth)} a step",
        )
    elif own is not None and not own.on_device and doing is not None and doing.phase in (Phase.FORWARD, Phase.BACKWARD):
        model = sum(_held(own).get(name, 0) for name in _WORDS)
        stay = f" at {mib(model)}" if model else ""
        yield Prescription(
            "halve-the-micro-batch",
            effect=f"activations halve; parameters, gradients and optimizer state stay{stay}",
        )
    yield Prescription(
        "lower-host-memory",
        change="use less host memory per rank, or raise the limit: docker --memory, Slurm --mem, the pod's limit",
    )


def _held(own: RankMemory | None) -> dict[str, int]:
    if own is None:
        return {}
    names = ("parameters", "gradients", "state", "buffers", "rss", "allocated", "reserved")
    return {name: own.last(name) for name in names if own.last(name)}


def _why(ending: Ending, request: Request, own: RankMemory | None, shortage: Shortage | None, echoes: list[int]) -> str:
    words = []
    if model := _model(own):
        words.append(f"it held {', '.join(model)}")
    if request.of == DEVICE:
        others = request.held_by_others if _is_held_by_others(request) else 0
        numbers = (
            ("of", request.capacity),
            ("free", request.free),
            ("in use by PyTorch", request.allocated),
            ("held by other processes", others),
        )
        words.append(", ".join(f"{mib(size)} {word}" for word, size in numbers if size) + " on the device")
    elif shortage is not None:
        limit = f" under a limit of {mib(shortage.limit)} (ulimit -v)" if shortage.limit else ""
        words.append(f"the process had {mib(shortage.rss)} resident{limit}")
    if echoes:
        words.append(f"{named(echoes)} failed afterwards because a peer was gone")
    if ending.traceback:
        words.append(f"its traceback is in the run folder ({ending.traceback})")
    return "; ".join(word for word in words if word.strip()) or "the exception reports it"


def _model(own: RankMemory | None) -> list[str]:
    held = _held(own)
    return [f"{word} {mib(held[name])}" for name, word in _WORDS.items() if held.get(name)]


_WORDS = {"parameters": "parameters", "gradients": "gradients", "state": "optimizer state", "buffers": "buffers"}


def _cures(request: Request, own: RankMemory | None, phase: str) -> Iterator[Prescription]:
    """The next thing to try first."""
    held = _held(own)
    total = request.allocated + request.cached
    if request.of == DEVICE and (not request.asked or _is_held_by_others(request)):
        yield Prescription(
            "a-device-for-each-rank",
            change="look at nvidia-smi: another process, or ranks that share a device, hold it; call "
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else',
        )
        return
    if request.of == DEVICE and total and request.cached >= max(FRAGMENTED * total, request.asked):
        yield Prescription(
            "expand-segments", effect=f"{mib(request.cached)} were reserved and not in use when it failed"
        )
    model = sum(held.get(name, 0) for name in _WORDS)
    if phase == "optimizer step" or (held.get("state", 0) > model / 3 and phase == "setting up"):
        yield Prescription(
            "halve-the-micro-batch", change="the optimizer state did not fit: shard it (fully_shard) or offload it"
        )
        return
    yield Prescription(
        "halve-the-micro-batch",
        effect="activations halve; parameters, gradients and optimizer state stay"
        + (f" at {mib(model)}" if model else ""),
    )


def sick() -> Recording:
    from distdoctor.testing.memory import MIB, memory_job

    job = memory_job(2).trains(5, parameters=64 * MIB, gradients=64 * MIB, state=128 * MIB)
    job.note(OutOfMemory("forward", resident=900 * MIB, limit=2048 * MIB), only=[1])
    words = (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    )
    words += "tried to allocate 2147483648 bytes. Error code 12 (Cannot allocate memory)"
    return job.fails(1, words, "train.py:41 forward").recording()


def healthy() -> Recording:
    from distdoctor.testing.memory import memory_job

    return (
        memory_job(2)
        .trains(5)
        .fails(1, "RuntimeError: mat1 and mat2 shapes cannot be multiplied", "m.py:3 f")
        .recording()
    )
