"""
DD311 sampler-for-another-world: the sampler's num_replicas and rank do not match the ranks that train together.

What it means    The sampler's num_replicas or rank are not those of the job: some shards are drawn by no rank, or one shard by
                 two ranks. Typical causes: rank=local_rank on several nodes, num_replicas left over from another launch, or a
                 sampler (one that a framework adds, too) over data of which every rank has already taken its own part.
Why it hurts     Samples of a shard without a rank are never seen; a shard with two ranks counts double. Where data are shared out
                 twice, an epoch leaves most of them out.
How we know      DistributedDataParallel or FSDP show which ranks average their gradients; the samplers of those ranks use a
                 different number of shards of the same data, or the same shard twice. Shared out twice: each rank reads a
                 Subset of its own of one dataset, together they are no longer than that, and their samplers deal out shares
                 of them (likely); or the ranks' data differ, and the source shows where each rank takes its share of the
                 samples (likely); or two samplers, one inside the other, both take the rank's share, and an epoch draws no
                 more than that leaves (likely); or accelerate deals out streams that differ, of which the source takes a
                 share (likely).
What to do       Omit num_replicas and rank (the process group knows them), or pass the global rank and world size. Share data
                 out once: hand the whole dataset to the sampler, or read a rank's own part with a sampler of one replica. In a
                 mesh take both numbers from its data dimension, `mesh["dp"]`.
When it is fine  Ranks of a tensor- or pipeline-parallel group use one shard on purpose: they do not average gradients with one
                 another.
Source           torch.utils.data.distributed.DistributedSampler.__init__ (torch 2.15).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.parts_of_model import FedApart, fed_apart
from distdoctor.diagnosis.data.samples import SampleOrders, Together
from distdoctor.diagnosis.data.splits import given_places, split_line
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.source.given_values import Line, given_to_sampler
from distdoctor.diagnosis.source.stream_shares import dealt_by, share_of_data, stream_share
from distdoctor.recording.rank_set import compress, named
from distdoctor.recording.recording import Recording, SourceLine

_DEALING = frozenset(
    {"DistributedSampler", "BatchSamplerShard", "DistributedBatchSampler", "DistributedSamplerWrapper"}
)

_SHARD_OF_STREAM = "IterableDatasetShard"  # accelerate's and transformers'


@check("DD311", "sampler-for-another-world", severity=ERROR, family="shares")
def examine(orders: SampleOrders, replicas: Replicas, sources: Sources, recording: Recording) -> Iterator[Finding]:
    yield from (_fed_apart(found, sources) for found in fed_apart(orders, replicas, recording))
    told: set[str] = set()
    for together in orders.together():
        for known in replicas.sets:
            passes = together.among(known.ranks)
            if not together.trains or not passes.passes or str(passes.one.made_line) in told:
                continue
            wrong = _what_is_wrong(passes, known)
            if wrong and not _deals_too(passes, sources):
                told.add(str(passes.one.made_line))
                yield _finding(passes, known, wrong, _given(passes, sources))
            elif _are_shared_out_twice(passes, known):
                told.add(str(passes.one.made_line))
                yield _twice(passes, split_line(sources.texts), "Subsets")
            elif _are_parts(passes, known) and (share := share_of_data(sources.texts, passes.one.data.name)):
                told.add(str(passes.one.made_line))
                yield _twice(passes, share, "data")
            elif _are_own_streams(passes, known) and (split := _split_of_stream(passes, sources)):
                told.add(str(passes.one.made_line))
                yield _stream_twice(passes, split)
            elif len(dealing := _dealing(passes, known, sources)) > 1:
                told.add(str(passes.one.made_line))
                yield _by_two_samplers(passes, dealing)


def _fed_apart(found: FedApart, sources: Sources) -> Finding:
    one, ranks = found.passes.one, found.passes.ranks
    given = given_to_sampler(sources.texts, one.made_line, "rank")
    return Finding(
        title=f"{named(ranks)} hold parts of one model, but their samplers deal them different shares of the data",
        ranks=ranks,
        confidence=LIKELY,
        place=given[0][0] if given else one.made_line or one.loop_line,
        places=(
            *given_places(given, ranks),
            Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}"),
            Place(found.summed_at, ranks, f"sums over these ranks what each makes of its batch, {found.shape}"),
        ),
        evidence={
            "num_replicas": one.num_replicas,
            "sampler_rank": {rank: p.sampler_rank for rank, p in list(found.passes.passes.items())[:8]},
            "steps": found.steps,
        },
        why=f"each holds shards (DTensor) of layers, whose outputs are summed over {named(ranks)} in the forward of "
        f"{found.steps} steps: the parts of one sum are made of different samples. What they hold as copies gets another "
        "gradient on each, and drifts apart",
        prescriptions=(
            Prescription(
                "sampler-of-this-world",
                change="take both numbers from the data dimension of the mesh: DistributedSampler(dataset, "
                'num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank())',
            ),
        ),
        at_ns=one.started_ns,
    )


def _are_shared_out_twice(together: Together, known: ReplicaSet) -> bool:
    """Whether every replica reads a part of its own of one dataset, and a sampler takes a share of that."""
    passes = list(together.passes.values())
    one = passes[0]
    return (
        1 < len(passes) == len(known.ranks)
        and all(p.sharded and p.subset and p.comparable and p.data.same_content(one.data) for p in passes)
        and len({p.data.outer for p in passes}) == len(passes)
        and 0 < sum(p.length for p in passes) <= one.data.length
    )


def _are_parts(together: Together, known: ReplicaSet) -> bool:
    """Whether every replica reads other data under one name, and a sampler takes a share of that as if they were the same."""
    passes = list(together.passes.values())
    return (
        1 < len(passes) == len(known.ranks) == len({p.sampler_rank for p in passes})
        and {p.num_replicas for p in passes} == {len(passes)}
        and all(p.sharded and not p.subset and p.comparable and p.data.pieces for p in passes)
        and len({p.data.digest for p in passes}) == len(passes)
        and min(p.length for p in passes) > 0
    )


def _are_own_streams(together: Together, known: ReplicaSet) -> bool:
    """Whether every replica goes over other data in a stream of which a framework deals out shares as if it were one."""
    data = [one.data for one in together.passes.values()]
    return (
        1 < len(data) == len(known.ranks) == len({one.digest for one in data})
        and {one.name for one in data} == {_SHARD_OF_STREAM}
        and all(one.pieces for one in data)
    )


def _split_of_stream(together: Together, sources: Sources) -> SourceLine:
    """Where the program itself gives each rank a part of the stream; no line where it does not."""
    names = together.one.data.held.split(">") if together.one.data.held else [""]
    shares = (stream_share(sources.texts, name, together.one.made_line) for name in names)
    return next((one.dealt for one in shares if one is not None), SourceLine())


def _stream_twice(together: Together, split: SourceLine) -> Finding:
    one, ranks, count = together.one, together.ranks, len(together.ranks)
    name = one.data.held.split(">")[0] or "the stream"
    return Finding(
        title=f"each rank reads a part of `{name}` of its own, of which {_SHARD_OF_STREAM} keeps 1 of {count} batches: the "
        "others are read by nobody",
        ranks=ranks,
        severity=WARNING,
        confidence=LIKELY,
        place=split,
        places=(
            Place(split, ranks, "each rank takes its own part"),
            Place(one.made_line, ranks, "the loader is created"),
            *((Place(one.loop_line, ranks, "trains on it"),) if one.loop_line else ()),
        ),
        evidence={"batches": {rank: p.batches for rank, p in list(together.passes.items())[:8]}},
        why=f"the data of {named(ranks)} differ, so the program has shared them out; {_SHARD_OF_STREAM} goes over the stream of "
        "each rank as if all ranks had the same one, and leaves out what would be the others' part",
        prescriptions=(
            Prescription(
                "share-out-once",
                change="leave either one out: give every rank the whole stream, or do not hand this loader to prepare()",
            ),
        ),
        at_ns=one.started_ns,
    )


def _deals_too(together: Together, sources: Sources) -> bool:
    """Whether a class of the user's in the chain takes a share as well: one by host and one by the ranks of a host, they
    share the data out once."""
    return any(dealt_by(sources.texts, name) for name in together.one.sampler.split(">"))


def _dealing(together: Together, known: ReplicaSet, sources: Sources) -> dict[str, SourceLine]:
    """The samplers inside one another that take a rank's share, the outer one first, where an epoch that every rank has finished
    draws no more than one share of that of the data. A framework's own have no line."""
    passes, one, count = list(together.passes.values()), together.one, len(known.ranks)
    usable = all(
        p.exhausted and p.comparable and p.sampler == one.sampler and p.data.same_content(one.data) for p in passes
    )
    most = one.length / count + sum(max(1, p.batch_size) for p in passes)
    if not usable or not 1 < len(passes) == count or not 0 < sum(p.drawn for p in passes) <= most < one.length:
        return {}
    lines = {name: dealt_by(sources.texts, name) for name in one.sampler.split(">")}
    return {name: line for name, line in lines.items() if line or name in _DEALING}


def _by_two_samplers(together: Together, dealing: Mapping[str, SourceLine]) -> Finding:
    one, ranks = together.one, together.ranks
    (outer, *_, inner) = dealing
    drawn = sum(p.drawn for p in together.passes.values())
    shares = tuple(Place(line, ranks, f"{name} takes the rank's share") for name, line in dealing.items() if line)
    return Finding(
        title=f"{inner} deals out the data by rank, and {outer} once more: an epoch draws {drawn:,} of {one.length:,} samples",
        ranks=ranks,
        severity=WARNING,
        confidence=LIKELY,
        place=shares[0].site if shares else one.made_line or one.loop_line,
        places=(*shares, Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}")),
        evidence={"samplers": one.sampler, "drawn": drawn, "dataset_length": one.length},
        why=f"{named(ranks)} finished the epoch and drew {drawn:,} samples together, one share of {len(ranks)} of the data: each "
        "of the two samplers leaves out what is not this rank's",
        prescriptions=(
            Prescription(
                "share-out-once",
                change=f"give {outer} a loader with a sampler that is not sharded, or leave {outer} out",
            ),
        ),
        at_ns=one.started_ns,
    )


def _twice(together: Together, split: SourceLine, parts_are: str) -> Finding:
    one, ranks = together.one, together.ranks
    parts = sum(p.length for p in together.passes.values())
    drawn = sum(p.length // p.num_replicas for p in together.passes.values())
    return Finding(
        title=f"each rank reads a part of `{one.data.name}` of its own, of which the sampler deals out 1 of {one.num_replicas} "
        f"shares once more: an epoch draws about {drawn:,} of {parts:,} samples",
        ranks=ranks,
        severity=WARNING,
        confidence=LIKELY,
        place=split or one.made_line or one.loop_line,
        places=(
            *((Place(split, ranks, "each rank takes its own part"),) if split else ()),
            Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}"),
        ),
        evidence={
            "num_replicas": one.num_replicas,
            "lengths": {rank: p.length for rank, p in list(together.passes.items())[:8]},
            "dataset_length": one.data.length,
        },
        why=f"the {parts_are} of {named(ranks)} differ and have {parts:,} samples together; samplers with "
        f"num_replicas={one.num_replicas} leave out the shares of the other ranks, which read other data",
        prescriptions=(Prescription("share-out-once"),),
        at_ns=one.started_ns,
    )


def _what_is_wrong(together: Together, known: ReplicaSet) -> str:
    """In words; "" when every replica has a share of its own of the same data, and when not all replicas were seen."""
    passes = list(together.passes.values())
    if not known.proven or len(passes) < len(known.ranks) or not all(one.sampler_rank >= 0 for one in passes):
        return ""
    if not all(one.data.same_content(passes[0].data) for one in passes):
        return ""  # shares of different data: each may have as many ranks as it needs
    shares = {one.num_replicas for one in passes}
    if shares == {1} and len(passes) > 1:
        return ""  # one share for everybody: not sharded at all, which is told elsewhere
    if len(shares) > 1:
        return f"their samplers split the data into {' and '.join(map(str, sorted(shares)))} shards"
    (count,) = shares
    doubled = [share for share, times in Counter(one.sampler_rank for one in passes).items() if times > 1]
    if doubled:
        are = "are" if len(doubled) > 1 else "is"
        return (
            f"shard{'s' if len(doubled) > 1 else ''} {compress(doubled)} of {count} {are} drawn by more than one rank"
        )
    if count > len(passes):
        left = set(range(count)) - {one.sampler_rank for one in passes}
        return f"no rank draws shard{'s' if len(left) > 1 else ''} {compress(left)} of {count}"
    return ""


def _given(passes: Together, sources: Sources) -> list[Line]:
    """Where the sampler is given its number of shards, where the ranks do not agree on that, or else its own number; and what
    that is made of."""
    shares = {one.num_replicas for one in passes.passes.values()}
    name = "rank" if shares == {len(passes.passes)} else "num_replicas"
    return given_to_sampler(sources.texts, passes.one.made_line, name)


def _finding(together: Together, known: ReplicaSet, wrong: str, given: list[Line]) -> Finding:
    one, ranks = together.one, together.ranks
    return Finding(
        title=f"{len(ranks)} ranks train together, but {wrong}",
        ranks=ranks,
        confidence=CERTAIN,
        place=given[0][0] if given else one.made_line or one.loop_line,
        places=(
            *given_places(given, ranks),
            Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}"),
        ),
        evidence={
            "num_replicas": {rank: p.num_replicas for rank, p in list(together.passes.items())[:8]},
            "sampler_rank": {rank: p.sampler_rank for rank, p in list(together.passes.items())[:8]},
            "replicas": list(known.ranks),
        },
        why=f"{known.words}; the samplers of {named(ranks)} have num_replicas="
        f"{'/'.join(str(n) for n in sorted({p.num_replicas for p in together.passes.values()}))}, "
        f"rank={','.join(str(p.sampler_rank) for p in list(together.passes.values())[:8])}",
        prescriptions=(
            Prescription(
                "sampler-of-this-world",
                change="DistributedSampler(dataset)  # num_replicas and rank of the process group",
            ),
        ),
        at_ns=one.started_ns,
    )


def sick() -> Recording:
    """Both ranks pass their local rank, which is 0 on both nodes."""
    from distdoctor.testing.samples import sampled_job

    return sampled_job(ranks=2, length=100).train(sampler_rank={0: 0, 1: 0}).recording()


def healthy() -> Recording:
    """Two data-parallel pairs of two tensor-parallel ranks: two shares, each drawn by both ranks of a pair."""
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=4, length=100, averaged_by="").averages((0, 2)).averages((1, 3))
    return job.train(num_replicas=2, sampler_rank={0: 0, 1: 0, 2: 1, 3: 1}).recording()
