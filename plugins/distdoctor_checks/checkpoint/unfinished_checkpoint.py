"""
DD707 unfinished-checkpoint: a checkpoint was not complete when the job ended or read it, or a pointer names a missing one.

What it means    The job did not wait for an asynchronous save before it read the checkpoint or ended, a writer thread was cut off
                 with the process, or a small file such as `latest` names a checkpoint that does not exist. Or only some ranks
                 wrote their shards of a sharded model, or each rank wrote its part into a folder that it named by its clock.
                 Or a thread wrote tensors while the optimizer changed them.
Why it hurts     The next start finds no checkpoint, or half of one, and begins from an older one or from scratch.
How we know      The save had begun but not finished when the rank exited on its own: certain. A rank that was killed or failed
                 leaves half a file as a consequence: likely. A thread that had called torch.save was working (not waiting for
                 work) when the interpreter shut down. Targets of pointers were checked as the process ended. A load that
                 failed had begun on the same rank before the asynchronous save of the same path was over: certain. Tensors that
                 torch.save got under the names of sharded parameters have the sizes of this rank's shards, and fewer ranks
                 saved such than share the parameters: likely. The same line saved at one step on ranks that work together, files
                 named by the rank in folders whose names differ in a time of day or a UUID alone: likely. So is a thread that
                 saved tensors which lie where an optimizer changes them, with optimizer steps before it was through.
What to do       Wait for the save's future, join the thread, and write the pointer last. Gather a sharded model on every rank
                 (get_model_state_dict with full_state_dict, full_tensor), or write it with torch.distributed.checkpoint. Let
                 rank 0 name the folder, and broadcast the name.
When it is fine  A pointer to a location outside its own folder, in a format of its own: it is not read. Shards that the other
                 ranks hand on in another way than by torch.save.
Source           PyTorch, "Asynchronous Saving with Distributed Checkpoint".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.checkpoint.checkpoints import FAILED, NOT_YET, CheckpointLoad, Checkpoints, Saved
from distdoctor.diagnosis.checkpoint.scattered import CLOCK, scattered
from distdoctor.diagnosis.checkpoint.torn import Torn, torn
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.source.begun_writes import file_opened, sorted_before_removed, thread_begun
from distdoctor.diagnosis.source.own_names import CLOCKS, RANDOM, names_made
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Exiting, Pointer, Saving, UncaughtException, Unfinished

ASYNCHRONOUS = "dcp.async_save"
FEW = 2  # lines that may have named a folder: of more nobody knows which


@check("DD707", "unfinished-checkpoint", severity=ERROR, family="hang", specificity=30)
def examine(checkpoints: Checkpoints, recording: Recording, verdict: Verdict | None) -> Iterator[Finding]:
    yield from _read_early(checkpoints, verdict)
    if not recording.job.running:
        yield from _cut_off(checkpoints, recording)
        yield from _threads(checkpoints, recording)
        yield from _shards_of_some(checkpoints)
    yield from _scattered(checkpoints, recording)
    yield from _torn(checkpoints)
    yield from _pointers(checkpoints, recording)


def _shards_of_some(checkpoints: Checkpoints) -> Iterator[Finding]:
    """Saves of the shards of some ranks, where parameters are sharded among more, over the whole run."""
    by_line: dict[SourceLine, list[Saved]] = defaultdict(list)
    for save in checkpoints.saves:
        if save.event.parts > 1:
            by_line[save.event.site].append(save)
    saved = {save.rank for saves in by_line.values() for save in saves}
    for site, saves in by_line.items():
        event, parts = saves[0].event, saves[0].event.parts
        if len(saved) >= parts:
            continue
        ranks = tuple(sorted({save.rank for save in saves}))
        shards = "its shard" if len(ranks) == 1 else "their shards"
        yield Finding(
            title=f"{named(ranks)} saved only {shards} of the parameters: {event.path} holds {len(ranks)} of {parts} parts",
            ranks=ranks,
            confidence=LIKELY,
            place=site,
            places=(Place(site, ranks, f"{event.by}, step {event.step}"),),
            evidence={"path": event.path, "parts": parts, "saved_by": sorted(saved), "saves": len(saves)},
            why=f"its tensors have the sizes of the shards of {named(ranks)}, and no other rank has saved any",
            prescriptions=(Prescription("gather-before-the-save"),),
            at_ns=event.at_ns,
        )


def _scattered(checkpoints: Checkpoints, recording: Recording) -> Iterator[Finding]:
    for one in scattered(checkpoints):
        ranks, folders = tuple(sorted(one.saves)), one.folders
        event = one.saves[ranks[0]].event
        apart = len(set(folders.values()))
        made = names_made(recording.sources, CLOCKS if one.named_by == CLOCK else RANDOM)
        yield Finding(
            title=f"{named(ranks)} wrote their parts of one checkpoint into {apart} folders: no folder holds all parts",
            ranks=ranks,
            confidence=LIKELY,
            place=one.site,
            places=(
                *(Place(line, ranks, f"makes a name of {one.named_by}") for line in made if len(made) <= FEW),
                *(Place(one.site, (rank,), f"writes into {folders[rank]}") for rank in ranks[:4]),
            ),
            evidence={"folders": sorted(set(folders.values()))[:8], "step": event.step, "named_by": one.named_by},
            why=f"each rank named its folder by {one.named_by}, at step {event.step}: the names agree only by chance",
            prescriptions=(Prescription("broadcast-the-folder"),),
            at_ns=event.at_ns,
        )


def _torn(checkpoints: Checkpoints) -> Iterator[Finding]:
    by_line: dict[SourceLine, list[Torn]] = defaultdict(list)
    for one in torn(checkpoints):
        by_line[one.saves[0].site].append(one)
    for site, found in by_line.items():
        first, ranks = found[0], tuple(sorted({one.rank for one in found}))
        several = f", and {len(found) - 1} more" if len(found) > 1 else ""
        yield Finding(
            title=f"{named(ranks)} wrote tensors of steps {first.first} to {first.last} into one checkpoint{several}: a thread "
            "saves them while the optimizer changes them",
            ranks=ranks,
            confidence=LIKELY,
            place=site,
            places=(Place(site, ranks, f"saves {first.tensors} tensors in a thread"),),
            evidence={
                "path": first.path,
                "first_step": first.first,
                "last_step": first.last,
                "checkpoints": len(found),
            },
            why=f"{first.tensors} tensors of {PurePosixPath(first.path).name} lie where an optimizer changes them, and it "
            f"stepped {first.last - first.first} times between the begin and the end of the save",
            prescriptions=(Prescription("copy-before-the-thread"),),
            at_ns=first.saves[0].at_ns,
        )


def _read_early(checkpoints: Checkpoints, verdict: Verdict | None) -> Iterator[Finding]:
    """Loads that failed because the asynchronous save of what they read was not over."""
    found: dict[tuple[SourceLine, SourceLine], list[tuple[Saved, CheckpointLoad]]] = defaultdict(list)
    for load in checkpoints.loads:
        for save in checkpoints.saves:
            if (
                save.rank == load.rank
                and save.event.by == ASYNCHRONOUS
                and load.done_ns == FAILED
                and _too_early(save, load)
            ):
                found[save.event.site, load.event.site].append((save, load))
    for (saved_at, loaded_at), pairs in found.items():
        ranks = tuple(sorted({load.rank for _, load in pairs}))
        save, load = pairs[0]
        failed = verdict.of_kind(IncidentKind.FAILED) if verdict is not None else ()
        ends = [one for one in failed if one.ending is not None and one.ending.site == loaded_at]
        seconds = (load.event.at_ns - save.event.at_ns) / 1e9
        yield Finding(
            title=f"{named(ranks)} read the checkpoint {load.event.path} before its asynchronous save was over",
            ranks=ranks,
            confidence=CERTAIN,
            place=saved_at,
            places=(
                Place(saved_at, ranks, f"{save.event.by} begins, step {save.event.step}"),
                Place(loaded_at, ranks, f"{load.event.by} fails"),
            ),
            evidence={"path": load.event.path, "saved_at_step": save.event.step, "loaded_at_step": load.event.step}
            | ({"exception": ends[0].ending.words} if ends and ends[0].ending is not None else {}),
            why=f"{load.event.by} began {seconds:.1f} s after the save, which had not finished, and failed",
            prescriptions=(Prescription("wait-for-the-save"),),
            at_ns=load.event.at_ns,
            explains=tuple(one.key for one in ends),
        )


def _too_early(save: Saved, load: CheckpointLoad) -> bool:
    begins = load.event.at_ns
    unfinished = save.done_ns == NOT_YET or save.done_ns > begins
    return load.event.path in save.names and save.event.at_ns < begins and unfinished


def _cut_off(checkpoints: Checkpoints, recording: Recording) -> Iterator[Finding]:
    open_saves: dict[SourceLine, list[Saved]] = defaultdict(list)
    for save in checkpoints.saves:
        if save.done_ns == NOT_YET and _is_over(recording, save.rank):
            open_saves[save.event.site].append(save)
    for site, saves in open_saves.items():
        ranks = tuple(sorted({save.rank for save in saves}))
        event, in_order = saves[-1].event, all(_in_order(recording, rank) for rank in ranks)
        asynchronous = event.by == ASYNCHRONOUS
        yield Finding(
            title=f"{named(ranks)} ended before the checkpoint {event.path} was written",
            ranks=ranks,
            confidence=CERTAIN if in_order else LIKELY,
            severity=ERROR if in_order else WARNING,
            place=site,
            places=(Place(site, ranks, f"{event.by} begins, step {event.step}"),),
            evidence={"path": event.path, "by": event.by, "step": event.step, "saves": len(saves)},
            why=f"{event.by} began at step {event.step} and had not finished when the process ended"
            + ("; its future was never waited for" if asynchronous and in_order else ""),
            prescriptions=(Prescription("wait-for-the-save"),),
            at_ns=event.at_ns,
        )


def _is_over(recording: Recording, rank: int) -> bool:
    return rank in recording.job.ends or recording.ranks[rank].has_noted(Exiting)


def _in_order(recording: Recording, rank: int) -> bool:
    """The rank ended by itself and without an exception."""
    end, log = recording.job.ends.get(rank), recording.ranks[rank]
    if log.has_noted(UncaughtException):
        return False
    return end is None or (not end.signal and not end.exit_code)


def _threads(checkpoints: Checkpoints, recording: Recording) -> Iterator[Finding]:
    broken = {one.path for _, one in checkpoints.events(Pointer) if not one.there}
    pointers = [site for path in sorted(broken) if (site := file_opened(recording.sources, path))]
    for rank, event in checkpoints.events(Unfinished):
        begun = thread_begun(recording.sources, event.site)
        yield Finding(
            title=f"rank {rank} ended while its thread {event.thread} was still writing a checkpoint",
            ranks=(rank,),
            confidence=LIKELY,
            place=begun or event.site,
            places=(
                *((Place(begun, (rank,), "hands the work to the thread"),) if begun else ()),
                Place(event.site, (rank,), "was working here"),
                *(Place(site, (rank,), "writes the name of a checkpoint that is not there") for site in pointers),
            ),
            evidence={"thread": event.thread, "daemon": event.daemon, "step": event.step},
            why="a daemon thread is cut off when the interpreter shuts down"
            if event.daemon
            else "the thread was working when the interpreter shut down",
            prescriptions=(Prescription("wait-for-the-save"),),
            at_ns=event.at_ns,
        )


def _pointers(checkpoints: Checkpoints, recording: Recording) -> Iterator[Finding]:
    broken: dict[str, list[tuple[int, Pointer]]] = defaultdict(list)
    for rank, event in checkpoints.events(Pointer):
        if not event.there:
            broken[event.path].append((rank, event))
    for path, found in broken.items():
        ranks, event = tuple(rank for rank, _ in found), found[0][1]
        saves = [save for save in checkpoints.saves if _holds(event.target, save)] or list(checkpoints.saves)
        site = saves[-1].event.site if saves else SourceLine()
        written = file_opened(recording.sources, path)
        was_saved = any(_holds(event.target, save) for save in checkpoints.saves)
        last = PurePosixPath(event.target).name
        by_text = _sorted_as_text(last, event.beside) if was_saved else ""
        removed = sorted_before_removed(recording.sources) if was_saved else SourceLine()
        yield Finding(
            title=f"{path} names {event.target}, which does not exist",
            ranks=ranks,
            confidence=LIKELY,
            place=(removed if by_text else written) or written or site,
            places=(
                *((Place(removed, ranks, "decides what is removed"),) if removed else ()),
                *((Place(written, ranks, "writes the name"),) if written else ()),
                *((Place(site, ranks, "saves what it names"),) if site else ()),
            ),
            evidence={
                "pointer": path,
                "target": event.target,
                "saved_here": was_saved,
                "there": list(event.beside),
            },
            why="its target was checked when the process ended"
            + (" (it was saved and removed again)" if was_saved else "")
            + (f"; {by_text}" if by_text else ""),
            prescriptions=(
                Prescription(
                    "wait-for-the-save",
                    change="sort checkpoints by the number in their names before the old ones are removed"
                    if by_text
                    else "",
                ),
            ),
            at_ns=event.at_ns,
        )


def _holds(target: str, save: Saved) -> bool:
    """Whether it is what was saved, or the folder of that."""
    return any(name == target or name.startswith(target.rstrip("/") + "/") for name in save.names)


def _sorted_as_text(name: str, others: tuple[str, ...]) -> str:
    """Says that a name comes before others as a text, and after all of them by its number; "" where that is not so."""
    number = _number(name)
    behind = [one for one in others if name < one and _number(one) < number]
    if not behind or any(_number(one) > number for one in others):
        return ""
    return f"sorted as texts, {name} comes before {behind[0]}, and is removed as the oldest"


def _number(name: str) -> int:
    return int("".join(re.findall(r"\d+", name)[-1:]) or -1)


def _job(done_ns: int) -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial().step()
    job.note(Saving("/job/ck", "dcp.async_save", 1, done_ns), site="train.py:48 main").note(Exiting())
    return job.recording()


def sick() -> Recording:
    """Nobody waited for an asynchronous save."""
    return _job(0)


def healthy() -> Recording:
    """It was over before the end."""
    return _job(1_001_000_000_000)
