"""
DD303 overlapping-samples: two ranks draw the same samples in one epoch.

What it means    The ranks' shards are not disjoint: some samples count twice in an epoch, others possibly not at all.
Why it hurts     Shared samples count double in the gradient, and an epoch covers less of the data than it claims.
How we know      The indices that two ranks drew in the same training pass are compared exactly, however many there are. While a
                 pass of more than about 24,000 draws per rank runs (and afterwards, if no disk space was left for the set of
                 its samples), only indices with common hashes are compared, the same ones on every rank, so an overlap that is
                 found is real. Samples with which DistributedSampler pads the last round (drop_last=False) are recognized by
                 position. Torch's own samplers for different shards never overlap if they agree on seed, epoch and shuffle: the
                 finding is then certain and names what differs. Other samplers and hand-made Subsets are compared over an equal
                 share's worth of draws only, without the last batch, and only among ranks that average gradients: likely.
                 Iterable data have no indices: samples (of very many, one in so many) are compared by content, over passes in
                 which no sample came twice (of those that were not read to their end, over the first of world_size parts), if
                 the source deals the stream out by rank: likely.
                 Where batches are no tensors of one length, only their first samples are, and one is enough where the source
                 shows that each rank shuffles by a seed of its own first. So are the samples of data sets of which each rank has
                 made one for itself: likely if the source shuffles before it deals out, else possible. Without a loader, rows
                 wrapped models are given are compared, while they lie on the host: in the first epoch, in which none came twice
                 to a rank, two ranks have one in world_size in common, as shares of orders of their own have (possible); or
                 nearly all that a rank is given another one was given a batch or so before (likely).
What to do       Give all ranks the same seed, epoch and dataset, and each rank its own rank number. Shuffle a list of shards
                 with a seed that is equal on all ranks, and deal it out afterwards.
When it is fine  Sampling with replacement, RandomSampler(num_samples=...) on each rank, repeated augmentation (RASampler), ranks
                 that must read the same data. If every rank draws everything, DD304 reports it; if the shards themselves are
                 misnumbered, DD311.
Source           torch.utils.data.distributed.DistributedSampler.__iter__ (torch 2.15).
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.own_shares import GivenSamples, OwnShares, Trailing, own_shares, trailing
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders
from distdoctor.diagnosis.data.sharing import Shared, shared_samples
from distdoctor.diagnosis.data.splits import cut_places, given_places, same_parts, split_key
from distdoctor.diagnosis.data.stream_overlap import SharedStream, shared_streams
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.source.given_values import Line, given_to_sampler
from distdoctor.diagnosis.source.own_batches import batches_of_model, seeds_by_rank, steps_beside
from distdoctor.diagnosis.source.picked_samples import Cut, cut_of_data
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording


@check("DD303", "overlapping-samples", severity=ERROR, family="shares")
def examine(
    orders: SampleOrders | None, given: GivenSamples | None, replicas: Replicas, sources: Sources
) -> Iterator[Finding]:
    for own in own_shares(given, replicas) if given is not None else ():
        yield _own_order_finding(own, sources)
    for behind in trailing(given, replicas) if given is not None else ():
        yield _trailing_finding(behind, sources)
    if orders is None:
        return
    told: set[str] = set()
    for shared in shared_samples(orders, replicas):
        loader = str(shared.passes.one.made_line)
        if loader not in told:
            told.add(loader)
            cut = cut_of_data(sources.texts, shared.passes.one.made_line) if _split(shared) else Cut()
            way = _given(shared, sources)
            yield _finding(shared, cut, way, _seeded(shared, sources) if not way else ())
    for stream in shared_streams(orders, replicas, sources.texts):
        yield _stream_finding(stream)


def _split(shared: Shared) -> bool:
    """Whether each rank drew from a part of its own, of one dataset."""
    return "Subset" in shared.differing


def _given(shared: Shared, sources: Sources) -> list[Line]:
    """Where the sampler is given what the ranks do not agree on, and what that is made of."""
    names = (name for name in shared.differing if name in ("seed", "shuffle"))
    return next((given_to_sampler(sources.texts, shared.passes.one.made_line, name) for name in names), [])


def _seeded(shared: Shared, sources: Sources) -> tuple[Place, ...]:
    """Where the ranks seed Lightning each in its own way: its samplers take the seed from there (PL_GLOBAL_SEED)."""
    if "seed" not in shared.differing:
        return ()
    lines = [(line, text) for line, text in seeds_by_rank(sources.texts) if "seed_everything" in text]
    return tuple(Place(line, shared.passes.ranks, f"seeds the sampler: `{text}`") for line, text in lines)


def _finding(shared: Shared, cut: Cut, given: list[Line], seeded: tuple[Place, ...]) -> Finding:
    one, common = shared.passes.one, shared.overlap
    decides = [line for line, _ in given[:1]] + [place.site for place in seeded]
    first, second, count = common.pairs[0]
    return Finding(
        title=f"{named(common.ranks)} share {common.words} in one epoch{_because(shared)}",
        ranks=common.ranks,
        severity=ERROR if shared.proven else WARNING,
        confidence=CERTAIN if shared.proven else LIKELY,
        place=cut.decides or next(iter(decides), one.made_line or one.loop_line),
        places=(
            *cut_places(cut, shared.passes.ranks),
            *given_places(given, shared.passes.ranks),
            *seeded,
            Place(one.made_line, shared.passes.ranks, f"the loader is created, sampler {one.sampler_name}"),
            Place(one.loop_line, shared.passes.ranks, "iterates it for training"),
            *(Place(p.set_epoch_line, (rank,), f"set_epoch({p.epoch_told})") for rank, p in _told(shared)),
        ),
        evidence={
            "shared": common.shared,
            "compared": common.compared,
            "keep_one_in": common.keep_one_in,
            "examples": list(common.examples),
            "pairs": [list(pair) for pair in common.pairs],
            "padding_left_out": sum(len(p.padding) for p in shared.passes.passes.values()),
            "differing": {name: dict(list(values.items())[:8]) for name, values in shared.differing.items()},
        },
        why=f"ranks {first} and {second} both drew {count:,} of them, for example sample {common.examples[0]}; "
        "the sampler's own padding is not counted",
        prescriptions=(
            Prescription("same-split-everywhere", change=same_parts(cut), effect="disjoint shards")
            if _split(shared)
            else Prescription(
                "same-seed-and-epoch",
                change="seed_everything with one seed on all ranks; give what has to differ a generator of its own"
                if seeded
                else "",
                effect="disjoint shards",
            ),
        ),
        explains=(split_key(one.data),) if _split(shared) else (),
        at_ns=one.started_ns,
    )


def _stream_finding(shared: SharedStream) -> Finding:
    one, (first, second, count), share = shared.passes.one, shared.pairs[0], shared.share
    seeds = ", ".join(f"{seed} on rank {rank}" for rank, seed in list(shared.seeds.items())[:3])
    return Finding(
        title=f"{named(shared.ranks)} read the same samples of {one.data.name} in one epoch, although each takes a share of "
        f"its own{f': their seeds differ ({seeds})' if seeds else ''}",
        ranks=shared.ranks,
        severity=WARNING,
        # A data set of which a part is everybody's, beside the rank's own, looks like one that was shared out badly.
        confidence=LIKELY if shared.of_stream or share.shuffled else POSSIBLE,
        place=share.shuffled or share.dealt,
        places=(
            *((Place(share.shuffled, shared.ranks, "shuffles before the shares are dealt"),) if share.shuffled else ()),
            Place(share.dealt, shared.ranks, "each rank takes its share"),
            Place(one.made_line, shared.ranks, "the loader is created"),
            Place(one.loop_line, shared.ranks, "iterates it for training"),
        ),
        evidence={
            "shared": shared.shared,
            "compared": shared.compared,
            "one_in": shared.one_in,
            "pairs": [list(pair) for pair in shared.pairs],
            "dataset": one.data.name,
            "seeds": shared.seeds,
        },
        why=("each rank shuffles by a seed of its own before it takes its share; " if share.by_rank else "")
        + (
            f"{count:,} of the {shared.compared:,} batches of rank {first} began with a sample with which one of rank {second} "
            "began in the same epoch"
            if shared.by_batches
            else f"{count:,} of the {shared.compared:,} samples of rank {first} that were compared came to rank {second} in the "
            "same epoch"
        )
        + "; no sample came twice to one rank, so shares of one common order would be disjoint",
        prescriptions=(
            Prescription(
                "same-order-before-sharding",
                change=""
                if share.shuffled
                else "list what is shared out in one order on all ranks (sorted by name), and take the "
                "rank's share of that",
                effect="disjoint shares that cover the stream",
            ),
        ),
        at_ns=one.started_ns,
    )


def _own_order_finding(own: OwnShares, sources: Sources) -> Finding:
    ranks, (one, other, shared) = own.replicas.ranks, max(own.pairs, key=lambda pair: pair[2])
    seeds, made = seeds_by_rank(sources.texts), batches_of_model(sources.texts)
    places = (
        *(Place(line, ranks, f"seeds each rank its own way: `{text}`") for line, text in seeds),
        *(Place(line, ranks, f"the model is given `{text}`") for line, text in made),
        *((Place(own.first.loop_line, ranks, "trains on it"),) if own.first.loop_line else ()),
    )
    return Finding(
        title=f"{named(ranks)} take one share in {len(ranks)} of the data, each in an order of its own: ranks {one} and {other} "
        f"share {shared:,} samples in one epoch",
        ranks=ranks,
        severity=WARNING,
        confidence=POSSIBLE,
        place=places[0].site if places else own.first.loop_line,
        places=places,
        evidence={"shared": shared, "drawn": dict(list(own.drawn.items())[:8]), "pairs": [list(pair) for pair in own.pairs[:16]]},
        why=f"rank {one} was given {own.drawn[one]:,} different samples before one came again; {shared:,} of them came to rank "
        f"{other} as well, about one in {len(ranks)}, as with orders that have nothing to do with one another. Shares of one "
        f"order are disjoint; now about {_unseen(len(ranks)):.0%} of the data are seen by no rank in an epoch",
        prescriptions=(
            Prescription(
                "same-order-before-sharding",
                change="shuffle by a generator with one seed for all ranks, and take the rank's share of that order",
                effect="disjoint shares that cover the data",
            ),
        ),
        at_ns=own.first.started_ns,
    )  # fmt: skip


def _trailing_finding(behind: Trailing, sources: Sources) -> Finding:
    ranks, made = behind.replicas.ranks, batches_of_model(sources.texts)
    places = (
        *(
            Place(line, ranks, f"goes on: `{text}`")
            for line, text in steps_beside(sources.texts, [line for line, _ in made])
        ),
        *(Place(line, ranks, f"the model is given `{text}`") for line, text in made),
        *((Place(behind.first.loop_line, ranks, "trains on it"),) if behind.first.loop_line else ()),
    )
    return Finding(
        title=f"rank {behind.rank} is given the samples that rank {behind.leader} was given {behind.lag} samples before: they "
        f"share {behind.shared:,} of {behind.drawn:,}",
        ranks=ranks,
        severity=WARNING,
        confidence=LIKELY,
        place=places[0].site if places else behind.first.loop_line,
        places=places,
        evidence={
            "shared": behind.shared,
            "drawn": behind.drawn,
            "lag": behind.lag,
            "behind": [behind.rank, behind.leader],
        },
        why="each begins at an offset of its own and goes on by the batch of one rank, so that one comes right behind the other: "
        "what all of them should read together is read by each, and the rest of the data by nobody",
        prescriptions=(
            Prescription(
                "same-order-before-sharding",
                change="go on by what all ranks read together (the batch of one times the number of ranks) where each begins at "
                "its own offset",
                effect="disjoint shares that cover the data",
            ),
        ),
        at_ns=behind.first.started_ns,
    )


def _unseen(ranks: int) -> float:
    """The part of the data that none of so many independent shares holds."""
    return (1 - 1 / ranks) ** ranks


def _because(shared: Shared) -> str:
    """`: their samplers differ in seed (0 on rank 0, 1 on rank 1)`."""
    for name, values in shared.differing.items():
        shown = ", ".join(f"{value} on rank {rank}" for rank, value in list(values.items())[:3])
        return f": their samplers differ in {name} ({shown}{', ...' if len(values) > 3 else ''})"
    return ""


def _told(shared: Shared) -> list[tuple[int, LoaderPass]]:
    return list(shared.passes.passes.items())[:4] if "epoch" in shared.differing else []


def sick() -> Recording:
    """Each rank seeds its sampler with its own rank."""
    from distdoctor.testing.samples import sampled_job, share

    orders = {rank: share(100, 2, rank, seed=rank) for rank in range(2)}
    return sampled_job(ranks=2, length=100).train(orders=orders, seed={0: 0, 1: 1}).recording()


def healthy() -> Recording:
    """101 samples for 2 ranks: the one that is drawn twice fills up the last round."""
    from distdoctor.testing.samples import sampled_job

    return sampled_job(ranks=2, length=101).train().recording()
