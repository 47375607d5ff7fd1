"""
DD804 removed-or-deprecated-api: the job uses an API that torch has deprecated or removed.

What it means    torch.cuda.amp, FSDP1, torch.distributed.launch and others have successors; torch.distributed.pipeline.sync is
                 already removed.
Why it hurts     The next version of torch may not start the job. FSDP1 gets no new features; fully_shard replaces it.
How we know      The uses were seen while the job ran (a constructor, a function, the launcher's command line), or a failed
                 import named the module.
What to do       Use the successor; most take the same arguments.
When it is fine  Pinned versions of torch: only a note.
Source           The deprecation notes of torch 2.15; torchrun's page on torch.distributed.launch; the FSDP1 to FSDP2 guide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, NOTE, Finding, Place, Prescription
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import Averaging, Deprecated, UncaughtException

SUCCESSORS = {
    "torch.cuda.amp.GradScaler": 'torch.amp.GradScaler("cuda")',
    "torch.cuda.amp.autocast": 'torch.amp.autocast("cuda")',
    "torch.cpu.amp.GradScaler": 'torch.amp.GradScaler("cpu")',
    "torch.cpu.amp.autocast": 'torch.amp.autocast("cpu")',
    "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    "torch.distributed.launch": "torchrun (python -m torch.distributed.run); read LOCAL_RANK instead of --local-rank",
    "torch.distributed._all_gather_base": "torch.distributed.all_gather_into_tensor",
    "torch.distributed._reduce_scatter_base": "torch.distributed.reduce_scatter_tensor",
    "torch.distributed.fsdp.FullyShardedDataParallel": "torch.distributed.fsdp.fully_shard",
    "torch.distributed.pipeline": "torch.distributed.pipelining",
    "torch.distributed.all_gather_multigpu": "torch.distributed.all_gather, one process per GPU",
}
_REMOVED = ("torch.distributed.pipeline",)
_SUCCESSOR = "No module named 'torch.distributed.pipelining"
_FSDP1 = "FullyShardedDataParallel"


@dataclass(frozen=True)
class Use:
    """One line that uses one name."""

    name: str
    site: SourceLine
    removed: bool = False


@dataclass(frozen=True)
class Deprecations:
    """What was used, with the ranks that did and when the first of them did, in nanoseconds on the wall clock."""

    streams: ClassVar[frozenset[str]] = frozenset({"environment"})
    uses: dict[Use, tuple[tuple[int, ...], int]]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        found: dict[Use, list[tuple[int, int]]] = defaultdict(list)
        for rank, log in recording.ranks.items():
            for use, at_ns in _uses(log):
                found[use].append((rank, at_ns + log.monotonic_to_wall_ns))
        return cls(
            {
                use: (tuple(sorted({rank for rank, _ in seen})), min(at_ns for _, at_ns in seen))
                for use, seen in found.items()
            }
        )


def _uses(log: RankTrace) -> Iterator[tuple[Use, int]]:
    for used in log.noted(Deprecated):
        yield Use(used.name, used.site), used.at_ns
    for averaging in log.noted(Averaging):
        if averaging.by == _FSDP1:
            yield Use(f"torch.distributed.fsdp.{_FSDP1}", averaging.site), averaging.at_ns
    for error in log.noted(UncaughtException):
        for name in _REMOVED:
            if f"No module named '{name}" in error.words and _SUCCESSOR not in error.words:
                yield Use(name, error.site, removed=True), error.at_ns


@check("DD804", "removed-or-deprecated-api", severity=NOTE, stands_alone=True)
def examine(deprecations: Deprecations) -> Iterator[Finding]:
    for use, (ranks, at_ns) in deprecations.uses.items():
        successor = SUCCESSORS.get(use.name, "")
        instead = f"; use {successor}" if successor else ""
        yield Finding(
            title=f"{use.name} is {'removed' if use.removed else 'deprecated'}{instead}",
            ranks=ranks,
            place=use.site,
            places=(Place(use.site, ranks, f"uses {use.name}"),) if use.site else (),
            evidence={"api": use.name, "instead": successor, "removed": use.removed},
            why="this version of torch still has it, a later one may not"
            if not use.removed
            else f"the import failed on {named(ranks)}",
            prescriptions=(
                Prescription("use-the-successor", change=f"{use.name} -> {successor}" if successor else ""),
            ),
            severity=ERROR if use.removed else NOTE,
            confidence=CERTAIN,
            at_ns=at_ns,
        )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).note(Deprecated("torch.cuda.amp.GradScaler"), site="train.py:18 main")
    return job.initial().step().recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step().recording()
