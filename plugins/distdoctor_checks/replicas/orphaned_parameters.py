"""
DD211 orphaned-parameters: parameters receive gradients and never change: no optimizer holds them, or their updates are lost.

What it means    The optimizer was built before the model got its present parameters: before fully_shard or parallelize_module
                 (which replace every parameter), before a layer was added, or while it was frozen. Or it steps on numbers of
                 16 bits: near one these lie 0.4 % apart, and an update of less than half of that is rounded away.
Why it hurts     The loss falls a little or not at all, and nothing fails: these layers keep their initial weights forever.
How we know      Every optimizer is known from its construction on. A parameter of the model had a gradient in the first steps,
                 was in no optimizer's param_groups, and kept every bit. Or it is in one, had a gradient in each sampled step,
                 and kept every bit over at least 32 steps and half of the run, while other parameters of that optimizer
                 changed: in 16 bits at a rate that would have moved it by 0.03 (likely); in 32 bits only a rate of 0 does that
                 (a note), unless the gradient is but rounding, as that of a bias before a batch normalization: not told.
What to do       Build the optimizer last, from the model's own parameters; add later ones with add_param_group. Keep the
                 parameters that the optimizer holds in fp32 (autocast, or MixedPrecisionPolicy(param_dtype=torch.bfloat16)
                 over an fp32 model).
When it is fine  A layer that was trainable when the optimizer was built but was left out: a note, because its gradient is
                 computed and averaged for nothing. Frozen parameters and parameters changed by hand are not reported, nor
                 optimizers whose rate is 0 in every group. An optimizer that adds its updates up in fp32 of its own may need
                 more steps before a number of 16 bits moves: accept it with --ignore DD211.
Source           torch.distributed.fsdp.fully_shard: "users should construct the optimizer after applying fully_shard".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.unmoved import Unmoved, unmoved
from distdoctor.diagnosis.replicas.wording import line_with
from distdoctor.diagnosis.source.call_edits import function_of
from distdoctor.diagnosis.source.given_values import called_from
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.diagnosis.source.ways import way_to
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Orphaned


@dataclass(frozen=True)
class OrphanedNames:
    """Parameters of one rank in no optimizer. `later`: they came after it; `stale` of its `own` parameters no module holds."""

    names: tuple[str, ...]
    count: int
    nbytes: int
    later: bool
    stale: int
    own: int
    built: SourceLine

    @property
    def abandoned(self) -> bool:
        """Whether the optimizer holds nothing at all that the model uses."""
        return 0 < self.own == self.stale


@check("DD211", "orphaned-parameters", severity=ERROR, stands_alone=True)
def examine(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    # Shards differ in size, and an empty one has no gradient to be seen: ranks are told together, by the one that saw most.
    seen: dict[tuple[SourceLine, bool, bool], dict[int, OrphanedNames]] = defaultdict(dict)
    at_ns: dict[tuple[SourceLine, bool, bool], int] = {}
    for rank, own in gradients.ranks.items():
        for event in own.events(Orphaned):
            found = OrphanedNames(
                event.names, event.count, event.nbytes, event.later, event.stale, event.own, event.site
            )
            key = found.built, found.later, found.abandoned
            seen[key][rank] = found
            at_ns.setdefault(key, event.at_ns)
    for key, by_rank in seen.items():
        most = max(by_rank.values(), key=lambda orphans: (orphans.count, orphans.nbytes))
        yield _finding(most, tuple(sorted(by_rank)), at_ns[key], gradients, sources)
    yield from (_unmoved(one, sources) for one in unmoved(gradients))


def _unmoved(one: Unmoved, sources: Sources) -> Finding:
    more = f" and {len(one.names) - 1} more" if len(one.names) > 1 else ""
    which = f"{one.names[0]}{more} of {one.of} parameters"
    casts = (
        ".bfloat16()" if one.dtype == "bfloat16" else ".half()",
        f".to(torch.{one.dtype}",
        f"dtype=torch.{one.dtype}",
    )
    cast = next(filter(None, (line_with(sources.texts, one.site, text) for text in casts)), SourceLine())
    cause = f"updates in {one.dtype} are rounded away" if one.is_rounded_away else "the rate of their group is 0"
    return Finding(
        title=f"{which} keep every bit from step {one.since} to {one.until}, although they have gradients: {cause}",
        ranks=one.ranks,
        place=one.site,
        places=(
            Place(one.site, one.ranks, "the optimizer steps"),
            *((Place(cast, one.ranks, "perhaps: casts what is trained"),) if cast and one.is_rounded_away else ()),
        ),
        evidence={
            "parameters": list(one.names[:8]),
            "count": len(one.names),
            "dtype": one.dtype,
            "learning_rate": one.rate,
            "steps": [one.since, one.until],
        },
        why=f"at a rate of {one.rate:.3g} others of this optimizer change; these had a gradient in each look and the same bits"
        if one.is_rounded_away
        else "others of this optimizer change, and these do not; their gradients are computed and averaged for nothing",
        prescriptions=(
            Prescription(
                "build-the-optimizer-last",
                change="keep the trained parameters in fp32 and compute in bfloat16 (torch.autocast, or a MixedPrecisionPolicy "
                "over an fp32 model); an optimizer with stochastic rounding or an fp32 master copy does it too"
                if one.is_rounded_away
                else "give the group its rate where the scheduler keeps it (base_lrs, initial_lr), or freeze it with "
                "requires_grad_(False)",
            ),
        ),
        severity=WARNING if one.is_rounded_away else NOTE,
        confidence=LIKELY,
        at_ns=one.at_ns,
    )


def _finding(
    orphans: OrphanedNames, ranks: tuple[int, ...], at_ns: int, gradients: Gradients, sources: Sources
) -> Finding:
    more = f" and {orphans.count - 1} more" if orphans.count > 1 else ""
    which = f"{orphans.names[0]}{more}"
    left_out = not (orphans.abandoned or orphans.later)
    step = next((u.site for u in gradients.every_update() if u.rank == ranks[0] and u.site), SourceLine())
    caller = called_from(sources.texts, orphans.built)
    built = Place(orphans.built or step, ranks, "the optimizer is built")
    calls = [Place(caller, ranks, "calls the function that builds it")] if orphans.built and caller else []
    first = orphans.later and _only_builds(
        orphans.built, step, sources
    )  # then what came later has to come before the call
    places = (*calls, built) if first else (built, *calls)
    title = f"no optimizer holds {which}: their gradients are computed and never used"
    if orphans.abandoned:
        title = (
            f"the optimizer's {orphans.own} parameters are no longer the model's: {which} train but are in no optimizer"
        )
    return Finding(
        title=title,
        ranks=ranks,
        place=places[0].site,
        places=(
            *places,
            *((Place(step, ranks, "steps without them"),) if step else ()),
        ),
        evidence={
            "parameters": list(orphans.names[:8]),
            "count": orphans.count,
            "bytes": orphans.nbytes,
            "came_later": orphans.later,
            "stale_in_optimizer": orphans.stale,
            "held_by_optimizer": orphans.own,
        },
        why=_why(orphans),
        prescriptions=(Prescription("build-the-optimizer-last"),),
        severity=NOTE if left_out else ERROR,
        confidence=CERTAIN if orphans.abandoned or left_out else LIKELY,
        at_ns=at_ns,
    )


def _only_builds(built: SourceLine, step: SourceLine, sources: Sources) -> bool:
    """Whether the function that builds the optimizer does not go on to the training."""
    program = program_of(sources.texts)
    function, way = function_of(sources.texts, built), way_to(program, step)
    return function is not None and way is not None and program.scopes[function] not in way.nodes


def _why(orphans: OrphanedNames) -> str:
    kept = "they have gradients, are in no optimizer's param_groups, and kept every bit over the first steps"
    if orphans.abandoned:
        return f"{kept}; no module holds any of the {orphans.own} parameters that the optimizer was built with"
    if orphans.later:
        return f"{kept}; they were missing or frozen when the optimizer was built"
    return f"{kept}; they were trainable when it was built, so this may be intended: requires_grad_(False) saves work"


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial().step()
    told = Orphaned(("head.weight", "head.bias"), later=True, stale=0, own=3, count=2, nbytes=2600)
    return job.note(told, site="train.py:20 main").recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step().step().recording()
