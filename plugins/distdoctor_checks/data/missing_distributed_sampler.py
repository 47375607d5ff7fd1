"""
DD304 missing-distributed-sampler: every rank reads the whole dataset, because nothing shards it among the ranks.

What it means    The training loader of each replica has a plain sampler (shuffle=True or sequential), so an epoch on W ranks is
                 really W epochs. If the ranks also share a seed, they read the same samples in the same order: their gradients
                 are copies of one another, and W ranks train like one.
Why it hurts     W times the work for one epoch's progress, or no contribution at all from W - 1 ranks.
How we know      The ranks average their gradients (DistributedDataParallel or FSDP reports it, or all_reduce calls have the
                 shapes of the gradients), and their datasets look the same. Each rank's sampler is torch's own over the whole
                 dataset, or has drawn all of it, or all ranks drew the same indices in the same order. Where these ranks'
                 losses differ all the same, with no dropout, or the source cuts something by the rank, or the ranks share a
                 model besides (all_to_all in the forward pass, parameters of each rank's own): a note, possible, without a
                 patch; with different losses and one of the others, nothing.
                 Of a sampler class of the user's that takes a rank, and deals out one order on all ranks, the line that gives
                 it is shown.
What to do       Give the loader sampler=DistributedSampler(dataset) instead of shuffle=True, and call set_epoch. A sampler of
                 your own that takes a rank: rank=dist.get_rank().
When it is fine  Ranks of a tensor-, pipeline- or context-parallel group must read the same samples: ranks that communicate in a
                 group of their own are not blamed. A dataset that each rank has cut to its own share looks different on each
                 rank: not reported. Nor is a global batch of which each rank takes its share. Evaluation of the whole dataset on
                 every rank is a note: right, but W times the work.
Source           torch.utils.data.distributed.DistributedSampler; PyTorch's DistributedDataParallel tutorial.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.samples import SampleOrders, Together
from distdoctor.diagnosis.data.sharing import SameData, same_data
from distdoctor.diagnosis.data.splits import given_places
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import (
    CERTAIN,
    ERROR,
    LIKELY,
    NOTE,
    POSSIBLE,
    WARNING,
    Finding,
    Place,
    Prescription,
    Severity,
)
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.spread_model import ForwardExchanges, spread_how
from distdoctor.diagnosis.replicas.used_factor import losses_differ
from distdoctor.diagnosis.source.batch_shares import takes_share_of_batches
from distdoctor.diagnosis.source.call_edits import keyword_of, keyword_set, only_call
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.given_values import rank_given_to_sampler
from distdoctor.diagnosis.source.sampler_calls import dataset_name, epoch_told_above, told_as
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import PassFlag


@check("DD304", "missing-distributed-sampler", severity=ERROR, family="shares")
def examine(
    orders: SampleOrders,
    replicas: Replicas,
    sources: Sources,
    gradients: Gradients | None,
    exchanges: ForwardExchanges | None,
) -> Iterator[Finding]:
    told: set[str] = set()
    for same in same_data(orders, replicas):
        passes = same.passes
        loader = f"{passes.one.made_line}|{passes.ranks}"
        if loader in told or not (passes.trains or _is_evaluation_to_share(passes)):
            continue
        told.add(loader)
        if not passes.trains:
            yield _evaluation(same)
            continue
        apart = losses_differ(gradients, passes.ranks) if gradients is not None and same.identical else None
        shares = apart is not False and same.identical and takes_share_of_batches(sources.texts, passes.one.loop_line)
        how = "the source seems to take a share of each batch" if shares else ""
        how = how or spread_how(exchanges, gradients, same.replicas)
        if how and apart:
            continue
        how = how or ("their losses differ in every step, without a dropout" if apart else "")
        yield _doubted(_training(same, sources), how) if how else _training(same, sources)


def _doubted(finding: Finding, how: str) -> Finding:
    """What ranks read alike they may use differently: each a part of the batch, or in an augmentation of its own. A patch would
    break that."""
    meant = "parts or augmentations of one batch may be meant"
    return replace(
        finding,
        why=f"{finding.why.partition(', so each')[0]}; {how}: {meant}",
        severity=NOTE,
        confidence=POSSIBLE,
        prescriptions=tuple(replace(one, edits=()) for one in finding.prescriptions),
    )


def _is_evaluation_to_share(passes: Together) -> bool:
    """Fewer samples than ranks are the rest of a dataset that was shared already: each rank evaluates it on purpose."""
    one = passes.one
    return passes.evaluates and not one.flags & PassFlag.REPLACEMENT and not 0 < one.length < len(passes.ranks)


def _training(same: SameData, sources: Sources) -> Finding:
    one, ranks = same.passes.one, same.passes.ranks
    severity: Severity = ERROR if same.identical else WARNING
    what = "draw the same samples in the same order" if same.identical else "each draw the whole dataset"
    parameter, given = rank_given_to_sampler(sources.texts, one.made_line) if same.identical else ("", [])
    wrong = "the training loader has no distributed sampler"
    if given:
        wrong = f"{one.sampler_name} deals them one share, by {parameter}={given[0][1]}"
    return Finding(
        title=f"{named(ranks)} {what}: {wrong}",
        severity=severity,
        ranks=ranks,
        confidence=CERTAIN if same.replicas.proven and same.seen else LIKELY,
        place=given[0][0] if given else one.made_line or one.loop_line,
        places=(
            *given_places(given, ranks),
            Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={
            "dataset": one.data.name,
            "samples": one.length,
            "sampler": one.sampler,
            "drawn": {rank: p.drawn for rank, p in list(same.passes.passes.items())[:8]},
            "first_indices": {rank: [int(i) for i in p.first[:5]] for rank, p in list(same.passes.passes.items())[:8]},
            "same_order": same.identical,
            "replicas": same.replicas.words,
        },
        why=_why(same),
        prescriptions=(_own_rank(same, parameter, given[-1][1]) if given else _sharded(same, sources),),
        at_ns=one.started_ns,
    )


def _own_rank(same: SameData, parameter: str, made_of: str) -> Prescription:
    count, name = len(same.passes.ranks), same.passes.one.sampler_name
    change = f"{name}(..., {parameter}=dist.get_rank())"
    if re.fullmatch(r"[\w.]*get_rank\(\)", made_of):  # the right number, which the class does not heed
        change = f"{name}: yield the share of its {parameter}, order[{parameter} :: dist.get_world_size()]"
    return Prescription(
        "sampler-of-this-world",
        change=change,
        effect=f"each step averages the gradients of {count} times as many different samples",
    )


def _sharded(same: SameData, sources: Sources) -> Prescription:
    one, ranks = same.passes.one, same.passes.ranks
    own = told_as(sources.texts, one.made_line) == "batch_sampler"  # beside one, a loader takes no sampler
    change = f"DataLoader(dataset, ..., sampler=DistributedSampler(dataset, shuffle={one.shuffles is not False}))"
    if own:
        change = f"{one.sampler_name}: let each rank draw its share, order[dist.get_rank() :: dist.get_world_size()]"
    covers = one.drawn >= one.length > 0 or bool(one.flags & PassFlag.WHOLE)
    return Prescription(
        "distributed-sampler",
        change=change,
        edits=_edits(sources, same),
        effect=f"each rank draws {-(-one.length // len(ranks)):,} of {one.length:,} samples an epoch instead of all"
        if one.length > 0 and covers
        else "",
    )


def _why(same: SameData) -> str:
    one, count = same.passes.one, len(same.passes.ranks)
    if same.identical:
        return f"{same.replicas.words}, and their {same.draws:,} draws are equal, so each step averages {count} equal gradients"
    return f"{same.replicas.words}; {one.sampler_name} covers all {one.length:,} samples on each, so one epoch is really {count}"


def _edits(sources: Sources, same: SameData) -> tuple[Edit, ...]:
    """The loader given a sampler in the place of its own shuffle, and the sampler told the epoch where it shuffles."""
    one, texts = same.passes.one, sources.texts
    call, data = only_call(texts, one.made_line, "DataLoader"), dataset_name(texts, one.made_line)
    if call is None or not data or any(keyword_of(call, name) for name in ("sampler", "batch_sampler")):
        return ()
    shuffles, text = one.shuffles is not False, texts[one.made_line.path]
    known = "DistributedSampler" if _imports_it(text) else "torch.utils.data.distributed.DistributedSampler"
    value = f"{known}({data})" if shuffles else f"{known}({data}, shuffle=False)"
    told = epoch_told_above(texts, one.loop_line, SourceLine()) if shuffles else ()
    given = keyword_set(one.made_line.path, call, "sampler", value, instead_of="shuffle")
    return (*given, *told) if given and (told or not shuffles) else ()


def _imports_it(text: str) -> bool:
    return re.search(r"^\s*from torch\.utils\.data\S* import .*\bDistributedSampler\b", text, re.MULTILINE) is not None


def _evaluation(same: SameData) -> Finding:
    one, ranks = same.passes.one, same.passes.ranks
    return Finding(
        title=f"{named(ranks)} each evaluate the whole dataset of {one.length:,} samples",
        severity=NOTE,
        ranks=ranks,
        confidence=CERTAIN if same.seen else LIKELY,
        place=one.made_line or one.loop_line,
        evidence={"dataset": one.data.name, "samples": one.length, "sampler": one.sampler},
        why=f"the result is right, at {len(ranks)} times the work; fine for a small dataset",
        prescriptions=(
            Prescription(
                "distributed-sampler",
                change="DataLoader(dataset, ..., sampler=DistributedSampler(dataset, shuffle=False)), and all_reduce sums and "
                "counts of what is measured",
                effect=f"{-(-max(one.length, 0) // len(ranks)):,} samples a rank",
            ),
        ),
        at_ns=one.started_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=64)
    order = list(range(64))[::-1]
    return job.train(orders={0: order, 1: order}, sampler="BatchSampler>RandomSampler", flags=_RANDOM).recording()


def healthy() -> Recording:
    """Tensor parallel: both ranks have to read the same samples, and nobody averages their gradients."""
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=64, averaged_by="")
    order = list(range(64))[::-1]
    return job.train(orders={0: order, 1: order}, sampler="BatchSampler>RandomSampler", flags=_RANDOM).recording()


_RANDOM = PassFlag.WHOLE | PassFlag.SHUFFLE_KNOWN | PassFlag.SHUFFLE
