"""
DD705 rank-zero-barrier-missing: a rank reads a checkpoint that another rank is still writing or has not written yet.

What it means    One rank saves, and the others proceed to the load without waiting for it.
Why it hurts     They find no file, half a file, or the previous one: ranks continue with different weights, or one fails.
How we know      The load began before the save of the same path had finished, and neither rank had entered a collective that
                 the other had not, so nothing orders the two. Certain.
What to do       Put a barrier between the save and the load, on every rank.
When it is fine  The reader waits in another way (for a file, a store): its load then begins after the save, and nothing is
                 reported. Nor are readers of checkpoints that another rank publishes by renames, without reading them itself:
                 actors that take the newest weights there are.
Source           PyTorch, DDP tutorial: "Use a barrier() to make sure that process 1 loads the model after process 0 saves it".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.checkpoint.checkpoints import FAILED, CheckpointLoad, Checkpoints, Saved
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Place, Prescription
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.statement_edits import met_before
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Loading, Renamed, Saving


@check("DD705", "rank-zero-barrier-missing", severity=ERROR)
def examine(checkpoints: Checkpoints, recording: Recording) -> Iterator[Finding]:
    races: dict[tuple[SourceLine, int], list[tuple[Saved, CheckpointLoad]]] = defaultdict(list)
    for save in checkpoints.saves:
        for load in checkpoints.loads:
            if _early(save, load) and not _is_published(checkpoints, save, load) and checkpoints.unordered(save, load):
                races[load.event.site, save.rank].append((save, load))
    for found in races.values():
        yield _finding(found, _edits(checkpoints, recording, found[0][1].event.site))


def _early(save: Saved, load: CheckpointLoad) -> bool:
    """The load of one rank began before what another saves under this name was there."""
    if save.rank == load.rank or save.final_ns <= 0 or save.done_ns == FAILED or "dcp" in save.event.by:
        return False
    return load.event.path in save.names and load.event.at_ns < save.final_ns


def _is_published(checkpoints: Checkpoints, save: Saved, load: CheckpointLoad) -> bool:
    """Whether a rank publishes checkpoints for others, who take what is there: a learner for its actors, members of a population.

    An earlier one lies there whole until a rename puts the new one in its place, and who saved does not load it on that line.
    """
    path, site = load.event.path, load.event.site
    saved = (one for one in checkpoints.saves if one.rank == save.rank and path in one.names)
    earlier = any(0 < one.final_ns < load.event.at_ns for one in saved)
    meets = any(one.rank == save.rank and (one.event.path, one.event.site) == (path, site) for one in checkpoints.loads)
    return earlier and path != save.event.path and not meets


def _finding(found: list[tuple[Saved, CheckpointLoad]], edits: tuple[Edit, ...]) -> Finding:
    save, load = found[0]
    ranks = tuple(sorted({one.rank for _, one in found}))
    early_ms = (save.final_ns - load.event.at_ns) / 1e6
    return Finding(
        title=f"{named(ranks)} loaded {load.event.path} {early_ms:,.0f} ms before rank {save.rank} had written it",
        ranks=ranks,
        confidence=CERTAIN,
        place=load.event.site,
        places=(
            Place(load.event.site, ranks, "loads without waiting"),
            Place(save.event.site, (save.rank,), "saves"),
        ),
        evidence={
            "path": load.event.path,
            "early_ms": round(early_ms, 3),
            "times": len(found),
            "failed": sum(one.done_ns == FAILED for _, one in found),
        },
        why=f"no collective of rank {save.rank} and {named(ranks)} separates the save from the load",
        prescriptions=(Prescription("barrier-after-save", effect="every rank reads what was just saved", edits=edits),),
        at_ns=load.event.at_ns,
    )


def _edits(checkpoints: Checkpoints, recording: Recording, site: SourceLine) -> tuple[Edit, ...]:
    """A barrier above the line that loads, where every rank loads there equally often, the one that saves as well."""
    loads = Counter(load.rank for load in checkpoints.loads if load.event.site == site)
    everybody = set(loads) == set(range(recording.world_size)) and len(set(loads.values())) == 1
    return met_before(recording.sources, site, "load") if everybody else ()


def _job(*, barrier: bool) -> Recording:
    from distdoctor.recording.recording import Job
    from distdoctor.testing.rank_trace import MILLISECOND, START_NS, TraceBuilder

    logs = [TraceBuilder(rank, world_size=2) for rank in (0, 1)]
    times = [START_NS + n * MILLISECOND for n in range(100)]
    for log in logs:
        log.group("0", (0, 1), at_ns=times[0])
        log.call("all_reduce", [4], site="train.py:30 main", at_ns=times[1])
    saving, renaming = (
        Saving("/job/best.pt.tmp", "torch.save", 1, times[40]),
        Renamed("/job/best.pt.tmp", "/job/best.pt"),
    )
    logs[0].note(saving, site="train.py:35 main", at_ns=times[10])
    logs[0].note(renaming, site="train.py:36 main", at_ns=times[41])
    if barrier:
        for log in logs:
            log.call("barrier", site="train.py:37 main", at_ns=times[50])
    load = times[60] if barrier else times[20]
    logs[1].note(Loading("/job/best.pt", "torch.load", 1, load + 1), site="train.py:38 main", at_ns=load)
    return Recording(Job(world_size=2), {log.rank: log.build() for log in logs})


def sick() -> Recording:
    return _job(barrier=False)


def healthy() -> Recording:
    return _job(barrier=True)
