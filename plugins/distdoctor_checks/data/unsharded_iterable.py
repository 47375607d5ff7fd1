"""
DD306 unsharded-iterable: an IterableDataset, or the script itself, yields the same batches on every rank, or in some workers.

What it means    No sampler shards iterable data: unless the dataset itself checks the rank, every rank gets all of it, in the
                 same order. One that is seeded with the sum of the rank's and the worker's number yields one stream in worker 1
                 of rank 0 and worker 0 of rank 1. Nor does anything shard batches that a script makes without a loader: ranks
                 with one seed draw the same ones.
Why it hurts     The ranks' gradients are copies of one another: W ranks train like one. Where single workers agree, their
                 samples come twice.
How we know      The first samples of the batches are compared by content, batch by batch: at least 8 different ones in a row
                 are equal on ranks that average their gradients. Random augmentation hides it: nothing is reported then.
                 Where each had a stream of its own until all had read one file, that file is shown.
                 torch asks the workers in turns, so each worker's batches are compared with those of every other: likely.
                 Where each rank shuffles in its own way, all samples of whole passes are compared: four in five or more came to
                 every rank, none twice to one, and the source deals nothing out by rank (likely where it deals out to workers
                 alone, or is told how many ranks there are, else possible). Of a stream without end, what came before any
                 sample came again (likely, or nothing).
                 Without a loader, what the wrapped models are given is compared, in the steps that are looked at: equal on all
                 replicas in each, at least 4 different ones, and so are the losses (likely). Where gradients are averaged by
                 hand the losses and the ranks' own gradients are compared (possible).
What to do       Take every world_size-th sample, starting at the rank; with workers, starting at rank * num_workers + worker
                 id. Seed with that number as well.
When it is fine  Tensor-, pipeline- and context-parallel ranks must read the same data: not reported. Nor is a stream of whole
                 batches of which each rank takes its share; where only the ranks' losses differ, with no dropout, or only the
                 source cuts something by the rank: a note, possible. One batch that is trained on again and again is a test of
                 the machine: nothing is said.
Source           torch.utils.data.IterableDataset, "Multi-process data loading" (torch 2.15).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.iterable_data import SameStream, copies_in_workers, same_streams, shared_state
from distdoctor.diagnosis.data.same_workers import SameWorkers, Worker, same_workers
from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.diagnosis.data.stream_overlap import WholeStream, whole_streams
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.hang.wording import at
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.same_batches import SameBatches, same_batches
from distdoctor.diagnosis.replicas.used_factor import losses_differ
from distdoctor.diagnosis.source.asked_early import number_without_group, rank_of_another_launcher
from distdoctor.diagnosis.source.batch_shares import takes_share_of_batches
from distdoctor.diagnosis.source.given_values import Line
from distdoctor.diagnosis.source.own_batches import batches_of_model, shared_seeds
from distdoctor.diagnosis.source.stream_seeds import stream_seed, summed_numbers
from distdoctor.diagnosis.source.stream_shares import is_told_the_world, shared_by_workers, shares_without_rank
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Loading
from distdoctor.recording.trace.layout import PassFlag


@check("DD306", "unsharded-iterable", severity=ERROR, family="streams")
def examine(
    orders: SampleOrders | None,
    replicas: Replicas,
    sources: Sources,
    gradients: Gradients | None,
    recording: Recording,
) -> Iterator[Finding]:
    told: set[str] = set()
    if gradients is not None and not (orders is not None and _has_training_loader(orders)):
        yield from (_made_by_hand(same, sources) for same in same_batches(gradients, replicas) if not same.before)
    if orders is None:
        return
    for same in same_streams(orders, replicas):
        line = str(same.passes.one.made_line)
        if line not in told:
            told.add(line)
            ranks, loop = same.passes.ranks, same.passes.one.loop_line
            apart = losses_differ(gradients, ranks) if gradients is not None else None
            shares = apart is not False and takes_share_of_batches(sources.texts, loop)
            if not (shares and apart):
                number = number_without_group(sources.texts, same.passes.one.data.name)
                number = number or rank_of_another_launcher(sources.texts)
                workers = shared_by_workers(sources.texts, same.passes.one.data.name) if not number else []
                finding = _finding(same, number, workers)
                loaded = shared_state(same, orders, recording)
                finding = _since_a_load(finding, same, loaded) if loaded is not None else finding
                yield _doubted(finding, shares) if shares or apart else finding
    for whole in whole_streams(orders, replicas, sources.texts):
        one = whole.passes.one
        if str(one.made_line) not in told:  # in orders of their own no share of one batch can be meant
            told.add(str(one.made_line))
            workers = shared_by_workers(sources.texts, one.data.name)
            meant = bool(workers) or is_told_the_world(sources.texts, one.data.name)
            if meant or not whole.endless:  # without end, an order of each rank's own may be meant
                yield _read_whole(whole, workers, meant=meant)
    for found in same_workers(orders, replicas):
        one = found.passes.one
        if str(one.made_line) not in told and not takes_share_of_batches(sources.texts, one.loop_line):
            told.add(str(one.made_line))
            seed = stream_seed(sources.texts, one.data.name)
            yield _of_workers(found, seed, [] if seed else summed_numbers(sources.texts, one.data.name))


def _has_training_loader(orders: SampleOrders) -> bool:
    return any(one.trains for passes in orders.by_rank.values() for one in passes)


def _made_by_hand(same: SameBatches, sources: Sources) -> Finding:
    ranks, last = same.replicas.ranks, same.updates[-1]
    shares = shares_without_rank(sources.texts)
    seeds = shared_seeds(sources.texts) if not shares else []
    made = batches_of_model(sources.texts)
    places = (
        *(Place(line, ranks, f"takes the same share on every rank: `{text}`") for line, text in shares[:2]),
        *(Place(line, ranks, f"seeds every rank alike: `{text}`") for line, text in seeds),
        *(Place(line, ranks, f"the model is given `{text}`") for line, text in made),
        Place(last.loss_site, ranks, "backward of the same loss on each"),
    )
    looks = len(same.updates)
    return Finding(
        title=f"{named(ranks)} train on the same batches: each step averages {len(ranks)} equal gradients",
        ranks=ranks,
        place=places[0].site,
        places=places,
        evidence={"looks": looks, "different_inputs": same.inputs, "replicas": same.replicas.words},
        why=f"{same.replicas.words}; {_equal_in(same)}",
        prescriptions=(
            Prescription(
                "seed-by-rank" if seeds else "shard-the-stream",
                change="torch.manual_seed(seed + rank)  # once the model is wrapped, ahead of the first draw"
                if seeds
                else f"begin at the number of the rank in `{shares[0][1]}` ({at(shares[0][0])})"
                if shares
                else "",
                effect=f"{len(ranks)} times as many samples in each step",
            ),
        ),
        severity=WARNING,
        confidence=LIKELY if same.inputs else POSSIBLE,
        at_ns=same.updates[0].at_ns,
    )


def _equal_in(same: SameBatches) -> str:
    looks = f"all {len(same.updates)} steps that were looked at"
    if not same.inputs:
        return f"their losses and their own gradients are equal in {looks}"
    also = "" if same.dropout else ", and so are the losses"
    return f"what their models were given is equal in {looks}, {same.inputs} times something else{also}"


def _doubted(finding: Finding, shares: bool) -> Finding:
    how = (
        "the source seems to take a share of each batch"
        if shares
        else "their losses differ in every step, without a dropout"
    )
    return replace(
        finding,
        why=f"{finding.why}; {how}: parts or augmentations of one batch may be meant",
        severity=NOTE,
        confidence=POSSIBLE,
    )


def _finding(same: SameStream, number: list[Line], by_workers: list[Line]) -> Finding:
    """`number`: where the dataset takes the number of its rank, and the constant that it is given without a process group.
    `by_workers`: where it deals out to the workers of a loader alone."""
    one, ranks = same.passes.one, same.passes.ranks
    workers = f", and so do its {one.workers} workers" if copies_in_workers(one) else ""
    return Finding(
        title=f"{named(ranks)} read the same stream: {one.data.name} yields the same samples on each{workers}",
        ranks=ranks,
        place=(*number, *by_workers, (one.made_line or one.loop_line, ""))[0][0],
        places=(
            *(Place(line, ranks, f"deals out to workers, not to ranks: `{text}`") for line, text in by_workers[:2]),
            *(Place(line, ranks, f"takes its number from `{text}`") for line, text in number[:1]),
            *(Place(line, ranks, f"which gives `{text}` while there is no process group") for line, text in number[1:]),
            Place(one.made_line, ranks, f"the loader is created, dataset {one.data.name}"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={
            "batches_compared": same.batches,
            "fingerprints": [f"{int(word):08x}" for word in one.first[:5]],
            "dataset": one.data.name,
            "workers": one.workers,
            "replicas": same.replicas.words,
        },
        why=f"the first samples of {same.batches:,} different batches are equal on {named(ranks)}; {same.replicas.words}",
        prescriptions=(
            Prescription(
                "shard-the-stream",
                change=f"make {one.data.name} after init_process_group, or give it the rank and the world size"
                if number
                else f"number the readers by rank * num_workers + worker in `{by_workers[0][1]}`, of world_size * num_workers"
                if by_workers
                else "",
                effect=f"each rank reads 1/{len(ranks)} of the stream",
            ),
        ),
        at_ns=one.started_ns,
    )


def _read_whole(whole: WholeStream, by_workers: list[Line], *, meant: bool) -> Finding:
    one, ranks = whole.passes.one, whole.passes.ranks
    thinned = f" (of one in {whole.one_in} that was compared)" if whole.one_in > 1 else ""
    much, when = "all", "in whole passes, none of them twice to one"
    if whole.endless:
        much, when = "the same stretch", "before any came again"
    return Finding(
        title=f"{named(ranks)} each read {much} of {one.data.name}, in orders of their own: no rank has a share of it",
        ranks=ranks,
        place=(*by_workers, (one.made_line or one.loop_line, ""))[0][0],
        places=(
            *(Place(line, ranks, f"deals out to workers, not to ranks: `{text}`") for line, text in by_workers[:2]),
            Place(one.made_line, ranks, f"the loader is created, dataset {one.data.name}"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={
            "shared": whole.shared,
            "one_in": whole.one_in,
            "dataset": one.data.name,
            "workers": one.workers,
            "replicas": whole.replicas.words,
        },
        why=f"the same {whole.shared:,} samples{thinned} came to each of {named(ranks)}, {when}; {whole.replicas.words}",
        prescriptions=(
            Prescription(
                "shard-the-stream",
                change=f"number the readers by rank * num_workers + worker in `{by_workers[0][1]}`, of world_size * num_workers"
                if by_workers
                else "",
                effect=f"each rank reads 1/{len(ranks)} of the stream, an epoch takes 1/{len(ranks)} of the steps",
            ),
        ),
        severity=WARNING,
        confidence=LIKELY if meant else POSSIBLE,
        at_ns=one.started_ns,
    )


def _since_a_load(finding: Finding, same: SameStream, loaded: Loading) -> Finding:
    """The same of ranks that had a stream each until all of them restored one state."""
    ranks, name = same.passes.ranks, same.passes.one.data.name
    return replace(
        finding,
        title=f"{named(ranks)} read the same stream since they restored one state of it: {name} had yielded other samples on "
        "each",
        place=loaded.site or finding.place,
        places=(*((Place(loaded.site, ranks, f"read {loaded.path}"),) if loaded.site else ()), *finding.places),
        why=f"{finding.why}; before all of them read {loaded.path}, each had a stream of its own",
        prescriptions=(
            Prescription(
                "shard-the-stream",
                change="save the state of each rank's loader (a file for each rank, or all_gather_object) and load states[rank]",
                effect=f"each rank reads 1/{len(ranks)} of the stream",
            ),
        ),
    )


def _of_workers(found: SameWorkers, seed: list[Line], summed: list[Line]) -> Finding:
    """`seed`: what the streams are seeded with, where the source shows it; `summed`: the number that two workers share."""
    one, ranks, stream = found.passes.one, found.ranks, found.streams[0]
    more = len(found.streams) - 1
    others = f", and so do those of {more} more stream{'s' if more > 1 else ''}" if more else ""
    return Finding(
        title=f"{_named(stream)} yield the same stream of {one.data.name}{others}",
        ranks=ranks,
        place=(*seed[::-1], *summed, (one.made_line or one.loop_line, ""))[0][0],
        places=(
            *(Place(line, ranks, f"numbers the readers by `{text}`") for line, text in summed),
            *(Place(line, ranks, f"the stream is seeded with `{text}`") for line, text in seed[-1:]),
            Place(one.made_line, ranks, f"the loader is created, {one.workers} workers, dataset {one.data.name}"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={
            "batches_compared": found.batches,
            "streams": [
                [{"rank": rank, "worker": worker} for rank, worker in workers] for workers in found.streams[:8]
            ],
            "dataset": one.data.name,
            "workers": one.workers,
            "replicas": found.replicas.words,
        },
        why=f"the first samples of {found.batches:,} different batches of these workers are equal, one after the other; "
        f"{found.replicas.words}",
        prescriptions=(
            Prescription(
                "seed-by-rank-and-worker" if seed else "shard-the-stream",
                change=f"number the readers by rank * num_workers + worker, not by `{summed[0][1]}`" if summed else "",
            ),
        ),
        confidence=LIKELY,
        at_ns=one.started_ns,
    )


def _named(workers: Sequence[Worker]) -> str:
    """`worker 1 of rank 0 and worker 0 of rank 1`."""
    shown = [f"worker {worker} of rank {rank}" for rank, worker in workers[:3]]
    if len(workers) > len(shown):
        shown.append(f"{len(workers) - len(shown)} more")
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def sick() -> Recording:
    from distdoctor.testing.samples import sampled_job

    stream = list(range(1000, 1020))
    return sampled_job(ranks=2, length=-1).train(orders={0: stream, 1: stream}, sampler="", flags=_STREAM).recording()


def healthy() -> Recording:
    from distdoctor.testing.samples import sampled_job

    orders = {0: list(range(1000, 1020)), 1: list(range(2000, 2020))}
    return sampled_job(ranks=2, length=-1).train(orders=orders, sampler="", flags=_STREAM).recording()


_STREAM = PassFlag.ITERABLE | PassFlag.HASHED
