"""
DD204 drifting-buffers: buffers of the model differ between replicas, and nothing synchronizes them.

What it means    Running statistics of a batch normalization, or another buffer, follow each rank's own data: the wrapper was
                 told not to broadcast buffers, or gradients are averaged by hand. Or they are random numbers that each rank drew
                 for itself when the model was made.
Why it hurts     Evaluation depends on the rank, and rank 0's checkpoint holds rank 0's buffers. For running statistics of equal
                 shards the effect is small and often intended; for codebooks, counters and moving averages it is not.
How we know      Digests of all bits of every buffer after a step, only where the wrapper does not broadcast before each
                 forward: likely, because a state that is carried from batch to batch may lie in a buffer, too. Where a
                 wrapper was told not to broadcast them, which somebody meant, they are a note, possible. These and running
                 statistics become a warning where one rank saves a checkpoint that holds them, with no collective of their size
                 between its last step and the save: likely, and possible where it is saved into memory, as bytes that somebody
                 else writes, or where they are no statistics and somebody meant it.
                 So are buffers of modules without parameters that no wrapper holds, as running
                 normalisers of observations, or the centre of a loss: compared where a forward goes
                 through them (one without gradients: possible; of a loss, where it computes with them), the source shows
                 that each value is made of the one before, they differ in every look and change on two ranks or more; and
                 so are buffers in a model that fully_shard or FSDP1 shards, which broadcast none. Where the wrapper does
                 broadcast them, those of the user's own modules whose forward computes with them in training: rank 0's replace
                 what all others have made of their rows (possible). Tensors and arrays in plain
                 objects are compared as well, where the source takes them off what a function is given, or divides that by them:
                 possible, and a note where they stay as they are since the start. So is a vocabulary, an encoder or a scale
                 that the source fits to one rank's share of the data, and of which no collective carries anything.
What to do       Let DistributedDataParallel broadcast buffers (its default), convert to SyncBatchNorm, or average the buffers
                 before evaluating and saving.
When it is fine  Intentionally rank-local running statistics, queues of keys and the like that are not saved, or averaged before:
                 reported only as a note; so where one rank saves the parameters and nothing else. Buffers with persistent=False
                 are caches: not compared.
Source           torch.nn.parallel.DistributedDataParallel, broadcast_buffers; torch.nn.SyncBatchNorm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.checkpoint.checkpoints import Checkpoints, Saved
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.finding import (
    CERTAIN,
    LIKELY,
    NOTE,
    POSSIBLE,
    WARNING,
    Confidence,
    Finding,
    Place,
    Prescription,
)
from distdoctor.diagnosis.hang.wording import at
from distdoctor.diagnosis.rank_groups import variants_of
from distdoctor.diagnosis.replicas.gradients import OBSERVED, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import TensorInfo, Update, same_ranks
from distdoctor.diagnosis.replicas.wording import event_site
from distdoctor.diagnosis.source.brought_together import brought_together
from distdoctor.diagnosis.source.fitted_tables import FittedTable, fitted_tables
from distdoctor.diagnosis.source.given_values import Line
from distdoctor.diagnosis.source.writes import (
    accumulated_at,
    buffer_writes,
    instances_made,
    is_used_forward,
    is_used_in_training,
    scales_what_it_is_given,
)
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import BesideUsed, SavedBeside, Saving, Wrapped
from distdoctor.recording.trace.layout import Op, TensorFlag
from distdoctor.recording.trace.state_file import BUFFERS, SAVE, WEIGHTS

FEWEST = 3  # looks at statistics beside the model
_DRAW_ALIKE = (
    "Seed all ranks alike before the model is built, or broadcast these buffers from rank 0 once, right behind it"
)
SHARDING = ("fully_shard", "FullyShardedDataParallel")
_GATHERS = (Op.ALL_GATHER, Op.ALL_GATHER_INTO_TENSOR, Op.ALL_GATHER_COALESCED)
Course = dict[int, dict[int, int]]  # step -> rank -> bits
Drift = tuple[int, tuple[tuple[int, ...], ...]]  # the first step, and the ranks by version


@check("DD204", "drifting-buffers", severity=WARNING, live=False)
def examine(
    gradients: Gradients, recording: Recording, checkpoints: Checkpoints | None, replicas: Replicas | None
) -> Iterator[Finding]:
    whole = [peers for peers in gradients.peers if peers.by != OBSERVED]
    sharded = list(_sharded(gradients, replicas)) if replicas is not None else []
    told: set[tuple[str, str, str]] = set()  # of a model that two optimizers train, each has looked at its buffers
    for peers in (*whole, *sharded):
        for normalisation in (True,) if peers in sharded else (False, True):
            drifts = _drifts(gradients, peers, normalisation)
            together = _brought_together_by_hand(recording, drifts)
            drifts = {name: drift for name, drift in drifts.items() if name not in together}
            buffers = {(t.name, t.owner, t.shape) for t in gradients.tensors_of(peers.ranks) if t.name in drifts}
            if not buffers <= told:
                told |= buffers
                saved = _saved_alone(drifts, gradients, peers, recording, checkpoints) if checkpoints else None
                yield _finding(gradients, peers, drifts, recording, saved, normalisation=normalisation)
    for peers in sharded:
        yield from _inside(gradients, peers, recording, checkpoints)
    for peers in whole:
        yield from _overwritten(gradients, peers, recording)
    training = [peers for peers in (*whole, *sharded) if peers.optimizer == 1]
    if training:
        most = max(training, key=lambda one: len(one.ranks))
        yield from _beside(gradients, most, recording, checkpoints)
        yield from _in_plain_objects(gradients, most, recording, checkpoints)
        if not _train_apart(gradients, most):
            yield from (_fitted(one, most) for one in fitted_tables(recording.sources))


def _sharded(gradients: Gradients, replicas: Replicas) -> Iterator[ReplicaGroup]:
    """Ranks that average gradients of parameters of which each holds a part: their buffers are whole, and of one model."""
    for one in replicas.sets:
        if one.by in SHARDING and all(rank in gradients.ranks for rank in one.ranks):
            for optimizer in sorted({tensor.optimizer for tensor in gradients.tensors_of(one.ranks)} - {0}):
                yield ReplicaGroup(one.ranks, optimizer, one.by, ())


def _inside(
    gradients: Gradients, peers: ReplicaGroup, recording: Recording, checkpoints: Checkpoints | None
) -> Iterator[Finding]:
    """Statistics in a sharded model, but for those of normalisations."""
    owners = {
        tensor.name: tensor.owner
        for tensor in gradients.tensors_of(peers.ranks)
        if tensor.flags & TensorFlag.BUFFER
        and tensor.optimizer == peers.optimizer
        and not tensor.agree
        and not tensor.flags & (TensorFlag.NORMALISATION | TensorFlag.COPY)
    }
    apart, line = _kept_apart(gradients, peers, recording, owners, peers.optimizer)
    if line:
        yield _local_statistics(gradients, peers, recording, checkpoints, apart, line, BesideUsed())


def _overwritten(gradients: Gradients, peers: ReplicaGroup, recording: Recording) -> Iterator[Finding]:
    """Statistics that each rank brings forward by its own rows, until the wrapper's broadcast replaces them by rank 0's."""
    if any(rank not in gradients.ranks for rank in peers.ranks):
        return
    by_class: dict[str, dict[str, str]] = defaultdict(dict)
    for tensor in gradients.tensors_of(peers.ranks):
        other = tensor.flags & (TensorFlag.NORMALISATION | TensorFlag.COPY)
        if tensor.flags & TensorFlag.LATER and not other and tensor.optimizer == peers.optimizer:
            by_class[tensor.owner][tensor.name] = tensor.owner
    for kind, owners in sorted(by_class.items()):
        apart, line = _kept_apart(gradients, peers, recording, owners, peers.optimizer)
        if line and any(is_used_in_training(recording.sources, kind, name.rpartition(".")[2]) for name in apart):
            yield _lost(gradients, peers, recording, apart, line)


def _lost(
    gradients: Gradients, peers: ReplicaGroup, recording: Recording, apart: dict[str, Course], line: SourceLine
) -> Finding:
    (name, course), more = next(iter(apart.items())), len(apart) - 1
    root, others = peers.ranks[0], named(peers.ranks[1:])
    writes = buffer_writes(recording.sources, apart)
    wrapped = event_site(gradients, Wrapped, peers.ranks)
    which = f"{name} and {more} more gain" if more else f"{name} gains"
    return Finding(
        title=f"what {which} on {others} is lost: rank {root}'s state replaces it before each forward",
        ranks=peers.ranks,
        place=writes[0][0] if writes else line,
        places=(
            *(Place(one, peers.ranks, f"on the way into it: `{text}`") for one, text in writes[:4]),
            *((Place(line, peers.ranks, "brings it forward by this rank's own rows"),) if not writes else ()),
            *((Place(wrapped, peers.ranks, "broadcasts buffers before each forward"),) if wrapped else ()),
        ),
        evidence={"buffers": list(apart)[:8], "looks": len(course)},
        why=f"it differs between {named(peers.ranks)} after each of {len(course)} steps that were looked at, and the forward "
        f"computes with it: it follows rank {root}'s rows alone",
        prescriptions=(Prescription("broadcast-buffers", change=_all_reduced(writes)),),
        confidence=POSSIBLE,
        at_ns=min((u.at_ns for u in _updates_at(gradients, peers, next(iter(course)))), default=0),
    )


def _all_reduced(writes: list[Line]) -> str:
    made = f" (`{writes[0][1]}`, {at(writes[0][0])})" if writes else ""
    return f"all_reduce what goes into it{made}, sums and counts, before it is written"


def _beside(
    gradients: Gradients, peers: ReplicaGroup, recording: Recording, checkpoints: Checkpoints | None
) -> Iterator[Finding]:
    """Statistics of what the model is fed, or by which its loss is computed, in modules that no wrapper knows."""
    if any(rank not in gradients.ranks for rank in peers.ranks):
        return
    used = {one.name: one for one in gradients.ranks[peers.ranks[0]].events(BesideUsed)}
    for module, event in used.items():
        if any(module not in {one.name for one in gradients.ranks[rank].events(BesideUsed)} for rank in peers.ranks):
            continue
        known = (t.name for t in gradients.tensors_of(peers.ranks) if not t.optimizer)
        owners = {name: module.partition(" ")[0] for name in known if name.startswith(f"{module}.")}
        if event.loss:  # it may keep others only to show them
            owners = {
                name: kind
                for name, kind in owners.items()
                if is_used_forward(recording.sources, kind, name.rpartition(".")[2])
            }
        apart, line = _kept_apart(gradients, peers, recording, owners, 0)
        if line and not _train_apart(gradients, peers):
            finding = _local_statistics(gradients, peers, recording, checkpoints, apart, line, event)
            yield replace(finding, confidence=POSSIBLE) if event.no_grad else finding


def _in_plain_objects(
    gradients: Gradients, peers: ReplicaGroup, recording: Recording, checkpoints: Checkpoints | None
) -> Iterator[Finding]:
    """Statistics by which the user's functions scale what they are given, in objects that are no modules."""
    if any(rank not in gradients.ranks for rank in peers.ranks):
        return
    owners: dict[str, dict[str, str]] = defaultdict(dict)  # of each object
    for tensor in gradients.tensors_of(peers.ranks):
        if tensor.flags & TensorFlag.PLAIN:
            of_object, _, attribute = tensor.name.rpartition(".")
            if scales_what_it_is_given(recording.sources, tensor.owner, attribute):
                owners[of_object][tensor.name] = tensor.owner
    for own in owners.values():
        apart, line = _kept_apart(gradients, peers, recording, own, 0)
        if line and not _train_apart(gradients, peers):
            yield replace(
                _local_statistics(gradients, peers, recording, checkpoints, apart, line, BesideUsed()),
                confidence=POSSIBLE,
            )
    scales = {name: kind for own in owners.values() for name, kind in own.items()}
    courses = {name: _course(gradients, peers, name, 0) for name in scales}
    fixed = {name: scales[name] for name, course in courses.items() if _is_constant(course) and _never_agree(course)}
    together = _brought_together_by_hand(recording, fixed)
    fixed = {name: kind for name, kind in fixed.items() if name not in together}
    if fixed and not _train_apart(gradients, peers):
        yield _other_scales(peers, recording, fixed)


def _never_agree(course: Course) -> bool:
    return all(len(set(by_rank.values())) > 1 for by_rank in course.values())


def _other_scales(peers: ReplicaGroup, recording: Recording, fixed: Mapping[str, str]) -> Finding:
    """Scales that are not the same on the ranks, and do not change while the job runs."""
    name, kind = next(iter(fixed.items()))
    more = f" and {len(fixed) - 1} more" if len(fixed) > 1 else ""
    made = instances_made(recording.sources, kind)
    return Finding(
        title=f"`{name}`{more}, by which what the model is given is scaled, {'are' if more else 'is'} not the same on "
        f"{named(peers.ranks)}",
        ranks=peers.ranks,
        place=made[0] if made else SourceLine(),
        places=tuple(Place(line, peers.ranks, "is made of what each rank has") for line in made[:4]),
        evidence={"scales": list(fixed)[:8]},
        why=f"{named(peers.ranks)} train one model: where each scales by statistics of its own data, the same input means "
        "something else on each rank, and a checkpoint holds the scale of one rank only",
        prescriptions=(
            Prescription(
                "broadcast-buffers",
                change="all_reduce the sums and counts that it is made of, or make it on rank 0 and broadcast_object_list it",
            ),
        ),
        severity=NOTE,
        confidence=POSSIBLE,
    )


def _fitted(one: FittedTable, peers: ReplicaGroup) -> Finding:
    """What the source fits to the samples of one rank, and never sends: nothing that was recorded tells whether it differs."""
    return Finding(
        title=f"`{one.name}` is fitted to each rank's own share of the data, and nothing of what it learns is sent",
        ranks=peers.ranks,
        place=one.fitted,
        places=(
            Place(one.fitted, peers.ranks, "is fitted"),
            Place(one.dealt, peers.ranks, "each rank takes its share"),
        ),
        evidence={"fitted": one.name},
        why=f"{named(peers.ranks)} train one model: where a table or a scale is another one on each rank, the same input means "
        "something else, and a checkpoint holds that of one rank",
        prescriptions=(
            Prescription(
                "broadcast-buffers",
                change="fit it to the data of all ranks, or on rank 0, and broadcast_object_list what it has learned",
            ),
        ),
        confidence=POSSIBLE,
    )


def _kept_apart(
    gradients: Gradients, peers: ReplicaGroup, recording: Recording, owners: Mapping[str, str], optimizer: int
) -> tuple[dict[str, Course], SourceLine]:
    """Of these buffers (name -> class) those that the ranks keep apart, and the first line that makes a value of that before."""
    courses = {name: _since_it_moves(_course(gradients, peers, name, optimizer)) for name in sorted(owners)}
    differing = {name: course for name, course in courses.items() if _is_apart(course)}
    together = _brought_together_by_hand(recording, differing)
    apart = {name: course for name, course in differing.items() if name not in together}
    kept = (accumulated_at(recording.sources, owners[name], name.rpartition(".")[2]) for name in apart)
    return apart, next((line for line in kept if line), SourceLine())


def _train_apart(gradients: Gradients, peers: ReplicaGroup) -> bool:
    """Whether the ranks hold other weights after some step: each may need statistics of its own until they are averaged."""
    found: dict[int, set[int]] = defaultdict(set)
    for updates in gradients.updates(peers).values():
        for update in updates:
            if update.digested:
                found[update.step].add(update.number("params"))
    return any(len(digests) > 1 for digests in found.values())


def _course(gradients: Gradients, peers: ReplicaGroup, name: str, optimizer: int) -> Course:
    """step -> rank -> its bits, in the steps that all ranks have looked at."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for rank in peers.ranks:
        own = gradients.ranks[rank]
        for tensor in own.tensors.values():
            if tensor.name == name and tensor.optimizer == optimizer and tensor.flags & TensorFlag.BUFFER:
                for step, row in own.rows_of(tensor.seq):
                    found[step][rank] = int(row["param"])
    return {step: by_rank for step, by_rank in sorted(found.items()) if len(by_rank) == len(peers.ranks)}


def _since_it_moves(course: Course) -> Course:
    """Without the first looks, in which no rank had changed the value that all began with."""
    first = {value for by_rank in list(course.values())[:1] for value in by_rank.values()}
    begins = next((step for step, by_rank in course.items() if len(first) > 1 or {*by_rank.values()} != first), None)
    return {step: by_rank for step, by_rank in course.items() if begins is not None and step >= begins}


def _is_apart(course: Course) -> bool:
    """Whether the ranks never agree on it, and at least two of them change it: one that changes it alone may be its owner."""
    if len(course) < FEWEST or any(len(set(by_rank.values())) == 1 for by_rank in course.values()):
        return False
    by_rank = zip(*([by_rank[rank] for rank in sorted(by_rank)] for by_rank in course.values()), strict=True)
    return sum(len(set(values)) > 1 for values in by_rank) > 1


def _local_statistics(
    gradients: Gradients,
    peers: ReplicaGroup,
    recording: Recording,
    checkpoints: Checkpoints | None,
    apart: dict[str, Course],
    line: SourceLine,
    used: BesideUsed,
) -> Finding:
    name, course = next(iter(apart.items()))
    step = next(iter(course))
    more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
    kept = [tensor for tensor in gradients.tensors_of(peers.ranks) if tensor.name == name]
    registered = not any(tensor.flags & TensorFlag.PLAIN for tensor in kept)
    writes = buffer_writes(recording.sources, apart) if registered else []
    saved = _saved_of_one(checkpoints, peers, recording, kept, step) if checkpoints is not None else None
    also = f", and rank {saved.rank} saves a checkpoint" if saved is not None else ""
    inside = not used.site and peers.by in SHARDING
    what = "statistics in the model" if inside else "statistics of what the model is trained on"
    follows = "compute with other values" if inside else "are each fed by another scale"
    if used.loss:
        what, follows = "statistics by which the loss is computed", "are each trained by another loss"
    unless = (
        ""
        if used.loss or peers.by in SHARDING
        else ", or make it a child of the wrapped model, so that the wrapper broadcasts it"
    )
    return Finding(
        title=f"step {step}: {what} differ between {named(peers.ranks)}: {name}{more}{also}",
        ranks=peers.ranks,
        place=writes[0][0] if writes else line,
        places=(
            *(Place(one, peers.ranks, f"on the way into it: `{text}`") for one, text in writes[:4]),
            *((Place(line, peers.ranks, "brings it forward by this rank's own data"),) if not writes else ()),
            *((Place(used.site, peers.ranks, "goes through it"),) if used.site else ()),
            *((Place(saved.event.site, (saved.rank,), "saves"),) if saved is not None else ()),
        ),
        evidence={"step": step, "buffers": list(apart)[:8], "looks": len(course)},
        why=f"they follow each rank's own data and differ in all {len(course)} looks: the replicas, which are one model, "
        f"{follows}, and a checkpoint can hold those of one "
        "rank only",
        prescriptions=(
            Prescription(
                "broadcast-buffers",
                change=f"all_reduce what goes into it (sums and counts) before it is written{unless}",
            ),
        ),
        severity=NOTE if saved is None else WARNING,
        confidence=LIKELY,
        at_ns=min((u.at_ns for u in _updates_at(gradients, peers, step)), default=0),
    )


def _saved_of_one(
    checkpoints: Checkpoints, peers: ReplicaGroup, recording: Recording, kept: Sequence[TensorInfo], since: int
) -> Saved | None:
    """The first save from that step on that holds such a buffer as it was on one rank alone."""
    saves = sorted(checkpoints.saves, key=lambda one: one.event.at_ns)
    some = {one.rank for one in saves} < set(peers.ranks)
    for one in saves:
        of_one = some or one.event.by.startswith("dcp.")  # which writes what is no DTensor from one rank
        late = one.event.step >= since
        if (
            of_one
            and late
            and not _brought_together(recording.ranks[one.rank], one, kept, sharded=peers.by in SHARDING)
        ):
            return one
    return None


def _updates_at(gradients: Gradients, peers: ReplicaGroup, step: int) -> list[Update]:
    """Also those for shards, on which no two ranks agree."""
    found = (u for rank in peers.ranks if rank in gradients.ranks for u in gradients.ranks[rank].updates)
    return [u for u in found if u.step == step and u.optimizer == peers.optimizer]


def _saved_alone(
    drifts: dict[str, Drift], gradients: Gradients, peers: ReplicaGroup, recording: Recording, checkpoints: Checkpoints
) -> Saved | None:
    """The first save by some of these ranks that holds such a buffer as it was on them alone. Lines on which all save do not
    count: there each may keep its own."""
    saves = (*checkpoints.saves, *checkpoints.in_memory)
    by_line: dict[SourceLine, set[int]] = defaultdict(set)
    for save in saves:
        by_line[save.event.site].add(save.rank)
    alone = {line: ranks for line, ranks in by_line.items() if not ranks >= set(peers.ranks)}
    if not alone or not set.union(*alone.values()) < set(peers.ranks):
        return None
    for save in sorted(saves, key=lambda one: one.event.at_ns):
        if save.event.site not in alone:
            continue
        states = [one for one in recording.states if one.document.when == SAVE and one.rank == save.rank]
        if save.event.tensors and save.event.tensors in {len(one.digests(WEIGHTS)) for one in states}:
            continue  # the parameters and nothing else
        kept = [one.digests(BUFFERS) for one in states]
        names = [
            name
            for name, (step, _) in drifts.items()
            if step <= save.event.step
            and any(known.endswith(name) for names in kept for known in names)
            and _may_hold(save, name)
        ]
        own = gradients.ranks[save.rank]
        buffers = [one for one in own.tensors.values() if one.name in names and one.flags & TensorFlag.BUFFER]
        if buffers and not _brought_together(recording.ranks[save.rank], save, buffers, sharded=peers.by in SHARDING):
            return save
    return None


def _may_hold(save: Saved, name: str) -> bool:
    """Whether a save holds a buffer of that name, of the model or of a module within it; True where its names are not known."""
    dotted = f".{name}"
    return save.beside is None or any(f".{one}".endswith(dotted) or dotted.endswith(f".{one}") for one in save.beside)


def _brought_together(log: RankTrace, save: Saved, buffers: Sequence[TensorInfo], *, sharded: bool) -> bool:
    """Whether a call between the last step and the save may have carried such a buffer. `sharded`: what is gathered in other
    shapes are parameters."""
    calls = log.calls
    before = calls["entered_ns"] <= save.event.at_ns - log.monotonic_to_wall_ns
    since = calls["step"] >= save.event.step
    if len(calls) and int(calls["seq"][0]) > 1 and not (~since & before).any():
        return True  # nobody knows
    enough = calls["nbytes"] >= min(one.numel for one in buffers)
    if sharded:
        shapes = {one.shape for one in buffers}
        enough &= [
            op not in _GATHERS or log.text(int(shape)) in shapes
            for op, shape in zip(calls["op"], calls["shape"], strict=True)
        ]
    return bool((before & since & enough).any())


def _brought_together_by_hand(recording: Recording, names: Collection[str]) -> frozenset[str]:
    """Those that the source averages itself: they may differ until it does."""
    if not names:
        return frozenset()
    sites = {log.site(int(text)) for log in recording.ranks.values() for text in np.unique(log.calls["site"])}
    return brought_together(recording.sources, names, sites)


def _drifts(gradients: Gradients, peers: ReplicaGroup, normalisation: bool) -> dict[str, Drift]:
    """The buffers of one kind that differ, by name."""
    values: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for rank in peers.ranks:
        own = gradients.ranks.get(rank)
        for tensor in own.tensors.values() if own is not None else ():
            wanted = tensor.flags & TensorFlag.BUFFER and not tensor.flags & (TensorFlag.LATER | TensorFlag.COPY)
            if (
                wanted
                and tensor.optimizer == peers.optimizer
                and bool(tensor.flags & TensorFlag.NORMALISATION) is normalisation
                and same_ranks(tensor.agree, peers.lane)
            ):
                for step, row in own.rows_of(tensor.seq) if own is not None else ():
                    values[tensor.name, step][rank] = int(row["param"])
    found: dict[str, Drift] = {}
    for (name, step), by_rank in sorted(values.items(), key=lambda item: item[0][1]):
        if len(set(by_rank.values())) > 1 and name not in found:
            found[name] = (step, variants_of(by_rank))
    return found


def _finding(
    gradients: Gradients,
    peers: ReplicaGroup,
    drifts: dict[str, Drift],
    recording: Recording,
    saved: Saved | None,
    *,
    normalisation: bool,
) -> Finding:
    name, (step, variants) = next(iter(drifts.items()))
    more = f" and {len(drifts) - 1} more" if len(drifts) > 1 else ""
    wrapped = event_site(gradients, Wrapped, peers.ranks)
    updates = _updates_at(gradients, peers, step)
    site = wrapped or next((u.site for u in updates if u.site), SourceLine())
    what = "running statistics" if normalisation else "buffers"
    writes = [] if normalisation else buffer_writes(recording.sources, drifts)
    alone = f", and rank {saved.rank} saves its own" if saved is not None else ""
    places = (Place(saved.event.site, (saved.rank,), "saves its own"),) if saved is not None else ()
    made_apart = all(_is_constant(_course(gradients, peers, one, peers.optimizer)) for one in drifts)
    return Finding(
        title=f"step {step}: {what} differ between {named(peers.ranks)}: {name}{more}{alone}",
        ranks=tuple(sorted(rank for variant in variants for rank in variant)),
        place=writes[0][0] if writes else site,
        places=(
            *(Place(line, peers.ranks, f"on the way into it: `{text}`") for line, text in writes[:4]),
            Place(site, peers.ranks, "no broadcast of buffers" if wrapped else "buffers are never averaged"),
            *places,
        ),
        evidence={"step": step, "buffers": list(drifts)[:8], "versions": [list(variant) for variant in variants[:8]]},
        why="they were drawn differently on each rank when the model was made: no step has changed them"
        if made_apart
        else "they follow each rank's own data, and no collective was seen that brings them together",
        prescriptions=(Prescription("broadcast-buffers", change=_DRAW_ALIKE if made_apart else _change(writes)),),
        severity=NOTE if saved is None and (normalisation or wrapped) else WARNING,
        confidence=_confidence(
            normalisation and saved is None,
            unsure=(bool(wrapped) and not normalisation) or (saved is not None and not saved.event.path),
        ),
        at_ns=min((u.at_ns for u in updates), default=0),
    )


def _is_constant(course: Course) -> bool:
    return len(course) >= FEWEST and len({tuple(sorted(by_rank.items())) for by_rank in course.values()}) == 1


def _change(writes: list[Line]) -> str:
    """What is done where the source writes the buffer itself; "" where it does not."""
    if not writes:
        return ""
    (line, text), (last, _) = writes[0], writes[-1]
    return (
        f"all_reduce what goes into it (`{text}`, {at(line)}) before it is written at {at(last)}, or let the wrapper broadcast "
        "buffers, its default"
    )


def _confidence(is_note: bool, *, unsure: bool) -> Confidence:
    if is_note:
        return CERTAIN
    return POSSIBLE if unsure else LIKELY


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job
    from distdoctor.testing.states import snapshot

    job = trained_job(2, buffers={"codebook": int(TensorFlag.BUFFER)}).initial().step(buffers={1: 1})
    job.note(Saving("/job/last.pt", "torch.save", 1, 1 << 40, 4), only=(0,), site="train.py:42 main")
    job.note(SavedBeside("/job/last.pt", ("module.codebook",)), only=(0,))
    saved = snapshot(
        "save", run="one", step=1, paths=["/job/last.pt"], buffers={"codebook": "b"}, weights={"0.weight": "w"}
    )
    return replace(job.recording(), states=(saved,))


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(
        2, buffers={"codebook": int(TensorFlag.BUFFER), "norm.mean": int(TensorFlag.BUFFER | TensorFlag.LATER)}
    )
    return job.initial().step().step().recording()
