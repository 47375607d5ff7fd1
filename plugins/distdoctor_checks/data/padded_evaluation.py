"""
DD309 padded-evaluation: an evaluation counts some samples twice, because the sampler pads the last round.

What it means    DistributedSampler (drop_last=False) gives every rank the same number of samples; if the dataset does not
                 divide evenly, the first samples of the order are drawn again.
Why it hurts     A metric over all draws counts those samples double and can be off by up to the padding's share.
How we know      Draws beyond the dataset's length are recognized by position; with other samplers, by the samples drawn twice
                 if every sample is drawn and all ranks have the same number. Reported from 1 % of the draws; less does not
                 visibly move a metric. The recording does not show whether the script excludes them from its metric: likely;
                 where the source cuts something to the length of the data (`every[: len(data)]`) a note, possible.
                 Where the source puts together what an all_gather brings, rank after rank, and cuts the end off (likely), the
                 order is not that of the data either. accelerate's padding is told where the source around the loop gathers
                 or reduces without gather_for_metrics.
                 A function that gathers rows of other numbers, fills them up to the longest rank and never asks for the numbers
                 again is told where ranks have called it (possible).
What to do       Exclude the padding from the metric (the last draws of the named ranks), or evaluate with drop_last=False on
                 hand-cut shards: indices[rank::world_size].
When it is fine  A script that excludes the padding itself, as accelerate's gather_for_metrics does. Padding in training: one
                 sample more or less per epoch.
Source           torch.utils.data.distributed.DistributedSampler.__iter__ (torch 2.15): `indices += indices[:padding_size]`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders, Together
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.source.cut_to_length import (
    CutRankAfterRank,
    cuts_rank_after_rank,
    cuts_to_length,
    gathers_padding,
)
from distdoctor.diagnosis.source.given_values import sampler_made
from distdoctor.diagnosis.source.uncut_gather import UncutGather, uncut_gathers
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.layout import PassFlag

LEAST_SHARE = 0.01


@check("DD309", "padded-evaluation", severity=WARNING, at_most=LIKELY)
def examine(orders: SampleOrders | None, sources: Sources, recording: Recording) -> Iterator[Finding]:
    yield from (_uncut(one, ranks) for one in uncut_gathers(sources.texts) if (ranks := _called(one, recording)))
    if orders is None:
        return
    told: set[str] = set()
    for together in orders.together():
        stock = {rank: one for rank, one in together.passes.items() if one.flags & PassFlag.DISTRIBUTED_SAMPLER}
        gathered = SourceLine() if stock else gathers_padding(sources.texts, together.one.loop_line)
        passes = together.passes if gathered else stock
        padded = {rank: len(one.padding) for rank, one in passes.items() if len(one.padding)} or _filled_up(together)
        drawn = sum(one.drawn for one in together.passes.values())
        line = str(together.one.made_line)
        if together.evaluates and line not in told and padded and _are_dealt_in_turn(stock):
            every = cuts_rank_after_rank(sources.texts)
            in_ranks = next((one.line for one in every if _is_of(one, line, orders, recording)), None)
            if in_ranks is not None:
                told.add(line)
                yield _out_of_order(together, padded, in_ranks)
                continue
        if together.evaluates and line not in told and sum(padded.values()) >= LEAST_SHARE * drawn:
            told.add(line)
            one = together.one
            made = sampler_made(sources.texts, one.made_line, shuffles=one.shuffles)
            found = _finding(together, padded, drawn, gathered, made)
            cut = cuts_to_length(sources.texts, together.one.loop_line) or _is_cut_by_a_library(sources)
            yield replace(found, severity=NOTE, confidence=POSSIBLE) if cut else found


def _called(one: UncutGather, recording: Recording) -> tuple[int, ...]:
    """The ranks that gathered there."""
    return tuple(rank for rank, log in recording.ranks.items() if _sites_at(log, one.gathers))


def _sites_at(log: RankTrace, line: SourceLine) -> list[int]:
    """The sites of a rank's calls that stand in a line."""
    sites = {int(site): log.site(int(site)) for site in np.unique(log.calls["site"])}
    return [number for number, site in sites.items() if (site.path, site.line) == (line.path, line.line)]


def _uncut(one: UncutGather, ranks: tuple[int, ...]) -> Finding:
    """Rows that are no samples, among those that all ranks have gathered."""
    return Finding(
        title="rows that fill up to the longest rank stay among what is gathered: the function does not cut them off",
        ranks=ranks,
        confidence=POSSIBLE,
        place=one.returns,
        places=(
            Place(one.returns, ranks, "hands on all that was gathered"),
            Place(one.fills, ranks, "fills up to the longest"),
            Place(one.gathers, ranks, "gathers"),
        ),
        why=f"{one.returns.function or 'the function'} gathers how many rows each rank has, asks for the largest number only, "
        "and returns what fills up as if it were results; equal numbers on all ranks hide it",
        prescriptions=(
            Prescription(
                "leave-padding-out", change="cut each part to its rank's number of rows before they are put together"
            ),
        ),
    )


def _are_dealt_in_turn(stock: Mapping[int, LoaderPass]) -> bool:
    """Whether torch's sampler gave the ranks the samples of the data in turn, as they lie there."""
    return len(stock) > 1 and all(
        one.shuffles is False and len(one.indices) > 1 and int(one.indices[1]) - int(one.indices[0]) == one.num_replicas
        for one in stock.values()
    )


def _is_of(cut: CutRankAfterRank, loader: str, orders: SampleOrders, recording: Recording) -> bool:
    """Whether that all_gather was called behind evaluations of this loader and at no other step: what gathers weights is not."""
    evaluated: dict[int, set[int]] = defaultdict(set)
    for together in orders.together():
        for rank, one in together.passes.items() if str(together.one.made_line) == loader else ():
            evaluated[rank].add(one.first_step)
    for rank, steps in evaluated.items():
        log = recording.ranks[rank]
        mine = np.isin(log.calls["site"], _sites_at(log, cut.gathered))
        if not mine.any() or not {int(step) for step in log.calls["step"][mine]} <= steps:
            return False
    return bool(evaluated)


def _out_of_order(together: Together, padded: Mapping[int, int], cut_off: SourceLine) -> Finding:
    one, ranks, count = together.one, together.ranks, sum(padded.values())
    return Finding(
        title=f"what {named(ranks)} have evaluated is put together rank after rank and cut to a length: the sampler deals in "
        "turn, so it is not in the order of the data, and samples are cut off in place of the padding",
        ranks=ranks,
        confidence=LIKELY,
        place=cut_off,
        places=(
            Place(cut_off, ranks, "puts together what all ranks have, one rank after the other, and cuts the end off"),
            Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}"),
            Place(one.loop_line, ranks, "iterates the loader"),
        ),
        evidence={"padding": dict(padded), "samples": one.length, "num_replicas": one.num_replicas},
        why=f"rank 0 is given samples 0, {one.num_replicas}, {2 * one.num_replicas}, ... of {one.length:,}, and the {count:,} "
        "that pad the last round lie at the end of the shares; a metric that compares with targets in the order of the data "
        "compares other samples, and one that does not loses the last ones",
        prescriptions=(
            Prescription(
                "leave-padding-out",
                change="bring them into the order of the data first: torch.stack(parts, dim=1).flatten(0, 1)[:length]",
            ),
        ),
        at_ns=one.started_ns,
    )


def _is_cut_by_a_library(sources: Sources) -> bool:
    """Composer's Trainer leaves the padding of the last batch out itself (0.32, `_eval_loop`)."""
    return any(re.search(r"(?m)^\s*(?:from|import)\s+composer\b", text) for text in sources.texts.values())


def _filled_up(together: Together) -> dict[int, int]:
    """The padding of a sampler that is not torch's: every sample is drawn, a few again, and all ranks have equally many."""
    passes, length = together.passes, together.one.length
    known = all(
        one.comparable and one.whole and one.keep_one_in == 1 and not len(one.padding) for one in passes.values()
    )
    if length <= 0 or not known or any(one.num_replicas != len(passes) for one in passes.values()):
        return {}
    shares = [one.indices for one in passes.values()]
    again = sum(map(len, shares)) - length
    if len({*map(len, shares)}) > 1 or not 0 < again < len(passes) or len(np.unique(np.concatenate(shares))) != length:
        return {}
    where: dict[int, tuple[int, int]] = {}  # sample -> (place in its rank's draws, rank)
    padded: Counter[int] = Counter()
    for rank, one in passes.items():
        for place, index in enumerate(one.indices.tolist()):
            before = where.setdefault(index, (place, rank))
            if before != (place, rank):
                padded[max(before, (place, rank))[1]] += 1
    return dict(padded)


def _finding(
    together: Together, padded: dict[int, int], drawn: int, gathered: SourceLine, sampler: SourceLine
) -> Finding:
    """`gathered`: where accelerate brings the results together, padding included; no line where the sampler is torch's.
    `sampler`: where that is made, as far as the source shows it."""
    one, count = together.one, sum(padded.values())
    are, them = ("is", "it") if count == 1 else ("are", "them")
    return Finding(
        title=f"{count:,} of {drawn:,} evaluated samples {are} padding: the sampler drew {them} a second time on {named(padded)}",
        ranks=tuple(padded),
        confidence=LIKELY,
        place=gathered or one.made_line or one.loop_line,
        places=(
            *((Place(gathered, together.ranks, "brings all results together, the padding's too"),) if gathered else ()),
            *((Place(sampler, together.ranks, "makes the sampler"),) if sampler else ()),
            Place(one.loop_line, together.ranks, "iterates the loader"),
        ),
        evidence={"padding": padded, "drawn": drawn, "samples": one.length, "sampler": one.sampler},
        why=f"{one.length:,} samples do not divide evenly by {one.num_replicas}; a metric over all {drawn:,} draws can be off by "
        f"{count / drawn:.1%}",
        prescriptions=(
            Prescription(
                "leave-padding-out",
                change="gather with accelerator.gather_for_metrics(...), which leaves the padding out"
                if gathered
                else "",
                effect=f"the metric counts {one.length:,} samples, each once",
            ),
        ),
        at_ns=one.started_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.samples import sampled_job

    return sampled_job(ranks=2, length=41).evaluate().recording()


def healthy() -> Recording:
    from distdoctor.testing.samples import sampled_job

    return sampled_job(ranks=2, length=40).evaluate().recording()
