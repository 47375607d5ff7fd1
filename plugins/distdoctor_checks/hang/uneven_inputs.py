"""
DD111 uneven-inputs: a rank ran out of batches before the others and left the loop that they are still in.

What it means    One rank's loader had fewer batches. That rank left the loop (or exited), while the others issue the
                 collectives of another step.
Why it hurts     The others hang in that step's collectives until the timeout, typically at the end of an epoch, after hours.
How we know      This rank's recorded pass over the loader ended after fewer batches than another rank has drawn from the same
                 loader, before its collectives diverged from the others'.
What to do       Give all ranks the same number of batches (drop_last, a DistributedSampler), or wrap the loop in `with
                 model.join():`.
When it is fine  Uneven inputs under join(), and loaders that only some ranks use: they do not hang and are not reported.
Source           torch.nn.parallel.DistributedDataParallel.join; torch.distributed.algorithms.join.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.uneven import Uneven
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import (
    at,
    by_site,
    deciding_places,
    of_variants,
    short,
    tipped,
)
from distdoctor.diagnosis.source.stream_shares import dealt_by, share_of_data
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.testing import recording


@check("DD111", "uneven-inputs", severity=ERROR, family="hang", stalls=Stalls.FOREVER, specificity=90)
def examine(verdict: Verdict) -> Iterator[Finding]:
    for incident in verdict.of_kind(IncidentKind.DIVERGED, IncidentKind.STRAYED, IncidentKind.LEFT):
        if incident.uneven is not None:
            alone = replace(incident.decided_by(incident.choice), ranks=incident.uneven.short, is_tie=False)
            yield _finding(verdict, alone)


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    uneven = incident.uneven
    assert uneven is not None
    counts: dict[int, list[int]] = {}
    for rank, batches in uneven.batches.items():
        counts.setdefault(batches, []).append(rank)
    table = "; ".join(f"{batches} batches on {named(ranks)}" for batches, ranks in sorted(counts.items()))
    least, most = min(counts), max(counts)
    dealt = _dealt(uneven, verdict.facts.recording.sources)
    return Finding(
        title=f"ran out of batches after {least}, others drew {most}"
        + (f": {_then(incident)}" if _then(incident) else ""),
        ranks=uneven.short,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=dealt or uneven.site,
        places=(
            *((Place(dealt, incident.ranks, "each rank takes its share"),) if dealt else ()),
            *_places(verdict, incident),
            Place(uneven.site, uneven.short, f"the loader ended after {least} batches"),
        ),
        evidence={
            "batches": dict(uneven.batches),
            "expected": short(incident.usual) if incident.usual else "",
            "issued": short(incident.odd) if incident.odd else "",
        }
        | tipped(incident),
        why=table,
        prescriptions=(
            Prescription(
                "join-uneven-inputs",
                change=f"give every rank {least} batches: cut the list of batches to a multiple of the ranks before each takes "
                "its share, from a shuffle that all seed alike (DistributedSampler with drop_last=True does both); or wrap "
                f"the loop at {at(uneven.site)} in `with model.join():`",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _dealt(uneven: Uneven, sources: Mapping[str, str]) -> SourceLine:
    """Where a rank takes its share, in a class of the user's or of what that is given; no line where the source shows none."""
    by_class = (dealt_by(sources, name) for name in (*uneven.samplers, uneven.dataset) if name)
    return next(filter(None, by_class), None) or share_of_data(sources, uneven.dataset)


def _then(incident: Incident) -> str:
    """What came of it."""
    if incident.odd is not None and incident.usual is not None:
        return f"it went on to {short(incident.odd)} while they are in {short(incident.usual)}"
    return f"it exited while they wait in {short(incident.usual)}" if incident.usual is not None else ""


def _places(verdict: Verdict, incident: Incident) -> tuple[Place, ...]:
    if incident.divergence is not None:
        return of_variants(verdict, incident)
    calls = [call for wait in incident.waiting for call in wait.calls]
    return (*by_site(verdict, calls or ([incident.usual] if incident.usual else [])), *deciding_places(incident))


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        others = [0, 1, 3] if step == 3 else range(4)
        script.draw(others, batch_size=8, loop_site="train.py:30 train", made_site="train.py:12 main")
        script.collective("all_reduce", [25600], native=True, only=others, site="train.py:33 train").step(others)
    return script.exhausted().collective("barrier", site="train.py:60 main").live()


def healthy() -> Recording:
    """Uneven inputs under join(): the rank that has run out shadows the others' collectives."""
    script = recording(ranks=4)
    for step in range(4):
        others = [0, 1, 3] if step == 3 else range(4)
        script.draw(others, batch_size=8, loop_site="train.py:30 train", made_site="train.py:12 main")
        if step == 3:
            script.exhausted(2)
        script.collective("all_reduce", [25600], native=True, site="train.py:33 train").step(others)
    return script.exhausted().collective("barrier", site="train.py:60 main").finished()
