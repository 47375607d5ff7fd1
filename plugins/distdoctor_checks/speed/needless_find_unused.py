"""
DD503 needless-find-unused: find_unused_parameters searches every step and finds none.

What it means    find_unused_parameters=True traverses the whole autograd graph after each forward and reduces a map of used
                 parameters after each backward. In every sampled step, every rank had used every parameter.
Why it hurts     The traversal delays backward, the map is one extra collective, and gradients of parameters used twice wait
                 longer.
How we know      torch's own map of used parameters, read before the optimizer steps: each entry counts the ranks that used that
                 parameter, and none was below the number of ranks. The traversal is timed.
What to do       Omit find_unused_parameters; use static_graph=True if the same parameters are unused in every step.
When it is fine  Branches that are rarely skipped: an unsampled step may have skipped one, so this is a note. Jobs below 16
                 steps and models on a device (where reading the map would synchronize) are not examined.
Source           torch.nn.parallel.DistributedDataParallel, find_unused_parameters; Reducer::all_reduce_local_used_map.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.events import RankEvents
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import LIKELY, NOTE, Finding, Place, Prescription
from distdoctor.diagnosis.source.statement_edits import wrapper_told
from distdoctor.recording.recording import Job, Recording, SourceLine
from distdoctor.recording.trace.events import UnusedSearch
from distdoctor.testing.rank_trace import TraceBuilder

FEWEST = 16  # steps that were looked at
# Who wraps the model of a script that does not ask for the search itself, and what tells them not to.
_WRAPPED_BY = (
    (
        "transformers",
        "TrainingArguments(..., ddp_find_unused_parameters=False): its Trainer asks for the search by default",
    ),
    ("accelerate", "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=False)])"),
)


@check("DD503", "needless-find-unused", severity=NOTE, live=False, stands_alone=True)
def examine(noted: RankEvents, sources: Sources) -> Iterator[Finding]:
    found: dict[tuple[tuple[int, ...], SourceLine], list[tuple[int, int, int, float]]] = {}
    for rank, one in noted.events(UnusedSearch):
        row = (rank, one.looked, one.left_out, one.nanoseconds / max(1, one.walks))
        found.setdefault((one.ranks, one.site), []).append(row)
    for (members, site), seen in found.items():
        ranks = tuple(sorted(rank for rank, *_ in seen))
        if len(ranks) < len(members) or any(looked < FEWEST or left_out for _, looked, left_out, _ in seen):
            continue
        looked, walk = min(looked for _, looked, _, _ in seen), max(walk for *_, walk in seen) / 1e6
        yield Finding(
            title=f"find_unused_parameters found none in {looked} steps: every rank used every parameter",
            ranks=ranks,
            confidence=LIKELY,
            place=site,
            places=(Place(site, ranks, "find_unused_parameters=True"),),
            evidence={"steps": looked, "seconds_per_forward": round(walk / 1e3, 6)},
            why=f"traversing the graph takes {walk:.2f} ms after each forward, and a map of used parameters is reduced after "
            "each backward",
            prescriptions=(
                Prescription(
                    "stop-searching",
                    change=_asked_of_a_library(sources.texts.get(site.path, "")),
                    effect=f"{walk:.2f} ms per forward, and one collective",
                    edits=wrapper_told(sources.texts, site, "find_unused_parameters", "False"),
                ),
            ),
        )


def _asked_of_a_library(text: str) -> str:
    """What to tell the library that wraps the model, "" where the script asks for the search itself or nobody knows."""
    if "find_unused_parameters" in text:
        return ""
    imports = (rf"(?m)^\s*(from|import)\s+{library}\b" for library, _ in _WRAPPED_BY)
    return next((change for found, (_, change) in zip(imports, _WRAPPED_BY, strict=True) if re.search(found, text)), "")


def _job(left_out: int) -> Recording:
    logs = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for log in logs:
        log.note(UnusedSearch((0, 1), 40, 32, left_out, 32_000_000), site="train.py:14 main")
    return Recording(Job(argv=("train.py",), world_size=2), {log.rank: log.build() for log in logs})


def sick() -> Recording:
    return _job(0)


def healthy() -> Recording:
    """In three steps some rank left a branch out."""
    return _job(3)
