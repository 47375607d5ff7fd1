"""
DD702 load-without-map-location: every rank loads the checkpoint onto the device from which it was saved.

What it means    torch.load restores each tensor to the device from which it was saved: cuda:0, if rank 0 saved it.
Why it hurts     All ranks of a host fill the memory of its first GPU with their copies, and pay for a CUDA context there.
How we know      Several ranks read one file without map_location before loading state from it. If bytes landed on another
                 rank's device it is a warning; if the tensors came from the CPU, a note.
What to do       torch.load(path, map_location="cpu") (with mmap=True for large files), or the rank's own device.
When it is fine  Checkpoints of CPU tensors: only a note.
Source           PyTorch, DDP tutorial: "map_location"; torch.load.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.checkpoint.checkpoints import CheckpointLoad, Checkpoints
from distdoctor.diagnosis.finding import CERTAIN, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Loading, StateLoaded


@check("DD702", "load-without-map-location", severity=WARNING)
def examine(checkpoints: Checkpoints) -> Iterator[Finding]:
    found: dict[tuple[str, SourceLine], list[CheckpointLoad]] = defaultdict(list)
    restored = {rank: event.at_ns for rank, event in checkpoints.events(StateLoaded)}  # the last of each rank
    for load in checkpoints.loads:
        event = load.event
        of_a_package = "/site-packages/" in event.path
        if (
            event.by == "torch.load"
            and not event.placed
            and not of_a_package
            and restored.get(load.rank, 0) > event.at_ns
        ):
            found[event.path, event.site].append(load)
    for loads in found.values():
        if len({load.rank for load in loads}) > 1:
            yield _finding(loads)


def _finding(loads: list[CheckpointLoad]) -> Finding:
    event, ranks = loads[0].event, tuple(sorted({load.rank for load in loads}))
    foreign = sum(load.event.foreign for load in loads)
    where = f"{foreign:,} bytes landed on other ranks' devices" if foreign else "harmless while it holds CPU tensors"
    return Finding(
        title=f"torch.load of {event.path} has no map_location: {where}",
        ranks=ranks,
        confidence=CERTAIN if foreign else POSSIBLE,
        severity=WARNING if foreign else NOTE,
        place=event.site,
        places=(Place(event.site, ranks, "loads without map_location"),),
        evidence={"path": event.path, "ranks": len(ranks), "foreign_bytes": foreign},
        why=f"{len(ranks)} ranks read the file, and each tensor goes to the device from which it was saved",
        prescriptions=(Prescription("map-location"),),
        at_ns=event.at_ns,
    )


def _job(*, placed: bool) -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).note(Loading("/job/c.pt", "torch.load", 0, 1, placed, 4096), site="train.py:20 main")
    job.note(StateLoaded("module", ("Net",), own=4), site="train.py:21 main")
    return job.initial().step().recording()


def sick() -> Recording:
    return _job(placed=False)


def healthy() -> Recording:
    return _job(placed=True)
