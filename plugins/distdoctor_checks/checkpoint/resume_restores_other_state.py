"""
DD706 resume-restores-other-state: the job resumes with the saved weights, but without other state that was saved or existed then.

What it means    Training state is more than weights: the optimizer's moments, the schedule, the loss scale, running statistics,
                 averaged copies, the RNG state. A piece of it was not saved, not loaded, not on every rank, or into an
                 object that another one has replaced; or a schedule was loaded and then moved on to there once more.
Why it hurts     Adam without its moments takes wrong steps for a while, a warm-up restarts, an average forgets: the loss jumps
                 for no visible reason. If only some ranks restore it, replicas drift apart.
How we know      Digests of every piece were taken when the earlier run of this program saved, and when this run began to train.
                 This run began with bit-identical weights (or read that file), but the piece differs. Likely: whether it was
                 intended is not on record. Possible, if only the weights were restored and no argument mentions resuming: that
                 may be a fresh start from trained weights. `distdoctor check-resume` runs the job uninterrupted and resumed,
                 and compares every step: certain. So are shards of a split model that are, to the bit, those that another
                 rank saved, and were other parts of it when the earlier run began.
                 Names that shared one parameter until load_state_dict(assign=True), and are two in an optimizer: likely,
                 since another model with these names may be trained.
                 Copies of the model that no module holds (averages in a dictionary) are searched for by their bits: none of
                 those that this rank saved is anywhere in its memory when training goes on.
                 Tensors in objects of yours that the checkpoint holds are followed by their bits, too: begun as at first,
                 though the save holds another value (possible, for they may be counted anew on purpose); or begun on a rank as
                 another had saved its own, though it had saved another value itself, or they differed between the two
                 whenever they were looked at (likely).
                 Of replicas that part in a step, some had loaded the state of optimizer or schedule, and others not: likely.
                 So are ranks that load the model and no ZeroRedundancyOptimizer, where others load theirs.
                 An object of yours that holds the optimizer, or an averaged copy of the model, and counts in an attribute, is
                 part of it: its counter stands twice as far with another learning rate, or begins anew.
                 Replicas whose models were given data of their own until a checkpoint was read, and the same since: likely.
                 Within one run likewise: a rank saves with its schedule or such copies, builds a new optimizer, brings weights
                 and moments back to the bit, and the schedule begins anew, or the copies are gone; or it reads that save, calls
                 load_state_dict of a new optimizer, and the weights are there, but no moments.
What to do       Save and load all of it in one place, on every rank. `distdoctor check-resume` shows the effect.
When it is fine  Fine-tuning from trained weights: with another learning rate than the fixed one of the earlier run, nothing is
                 said, nor of a stage that begins with parts of an average that was saved. The RNG state alone is a note: it
                 makes no result wrong.
Source           PyTorch, "Saving and Loading a General Checkpoint".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from distdoctor.diagnosis.check import NotApplicable, NotSeen, check
from distdoctor.diagnosis.checkpoint.misplaced import MisplacedShards
from distdoctor.diagnosis.checkpoint.restored import (
    AHEAD,
    RNG,
    ROUNDED,
    WORDS,
    Continuation,
    Piece,
    Restored,
    where_loaded,
    words_of,
)
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.hang.wording import at
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.same_batches import SameBatches, same_batches
from distdoctor.diagnosis.replicas.tensor_differences import PARAMS
from distdoctor.diagnosis.source.counters import begun_at, is_read, moved_after
from distdoctor.diagnosis.source.deciding import deciding_condition
from distdoctor.diagnosis.source.rank_guard import guards_at
from distdoctor.diagnosis.source.rebuilt import rebuilt_after
from distdoctor.diagnosis.source.schedules import schedule_made_after
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.replay import Replay
from distdoctor.recording.trace.events import Loading, StateLoaded, Untied
from distdoctor.recording.trace.state_file import AGAIN, BESIDE, COPIES, MOMENTS, OWN, SCHEDULE, UPDATES, WEIGHTS

_IN_PARTS = "ZeroRedundancyOptimizer"


@check("DD706", "resume-restores-other-state", severity=WARNING, live=False, specificity=50)
def examine(
    restored: Restored | None,
    gradients: Gradients | None,
    partings: ReplicaDivergences | None,
    replicas: Replicas | None,
    recording: Recording,
) -> Iterator[Finding]:
    ties = list(_trained_apart(gradients)) if gradients is not None else []
    if ties:
        yield _untied(ties)
    streams = list(_one_stream_since(gradients, replicas)) if gradients is not None and replicas is not None else []
    yield from streams
    replay = recording.replay
    if replay is not None:
        if replay.trouble:
            raise NotSeen(f"the resume was not compared: {replay.trouble}")
        if not replay.healthy and not _is_of_the_data(recording, replay):
            yield _replayed(replay)
        return
    if restored is None:
        alone = [_by_some(one, recording) for one in partings.found] if partings is not None else []
        alone += _parts_by_some(recording)
        yield from filter(None, alone)
        if ties or streams or any(alone):
            return
        raise NotApplicable("no earlier run of this program left a save next to this one")
    if restored.misplaced is not None:
        yield _misplaced(restored.misplaced, restored, recording)
    others = [one for one in restored.ranks.values() if one.of_others]
    if others:
        yield _of_others(others, restored, recording)
    alike: dict[tuple[str, ...], list[Continuation]] = defaultdict(list)
    for one in (_that_matter(each, recording) for each in restored.ranks.values()):
        if one.pieces and not one.is_another_training:
            alike[tuple(piece.kind for piece in one.pieces)].append(one)
    for found in alike.values():
        finding = _finding(found, restored, recording)
        yield _of_some(finding, found, restored, partings, recording) if len(found) < len(restored.ranks) else finding
    if not alike and restored.misplaced is None:
        yield from _parts_by_some(
            recording
        )  # a save of the whole state holds no part by which a rank could be compared


def _that_matter(one: Continuation, recording: Recording) -> Continuation:
    """Without counters that nobody reads."""
    kept = (piece for piece in one.pieces if piece.kind != UPDATES or is_read(recording.sources, piece.names[0]))
    return replace(one, pieces=tuple(kept))


def _trained_apart(gradients: Gradients) -> Iterator[tuple[int, Untied]]:
    """(rank, event) of the names that shared a parameter until a state was loaded, and that an optimizer holds as two."""
    for rank, own in gradients.ranks.items():
        held = {tensor.name for tensor in own.tensors.values()}
        for event in own.events(Untied):
            if all(any(name == one or name.endswith(f".{one}") for name in held) for one in event.names):
                yield rank, event


def _one_stream_since(gradients: Gradients, replicas: Replicas) -> Iterator[Finding]:
    """Ranks that read data of their own until a checkpoint was read, and the same since: they all go on where one of them was."""
    for same in same_batches(gradients, replicas):
        begin, ranks = same.updates[0], same.replicas.ranks
        loads = [
            replace(event, at_ns=event.at_ns + log.monotonic_to_wall_ns)
            for log in (gradients.ranks[rank].log for rank in ranks)
            for event in log.noted(Loading)
        ]
        between = [event for event in loads if same.before < event.at_ns < begin.at_ns]
        if same.before and between:
            yield _one_stream(same, between[0])


def _one_stream(same: SameBatches, load: Loading) -> Finding:
    ranks, looks = same.replicas.ranks, len(same.updates)
    return Finding(
        title=f"{named(ranks)} train on the same batches since a checkpoint was read: all go on where one rank's data stood",
        ranks=ranks,
        confidence=LIKELY,
        place=load.site,
        places=(
            Place(load.site, ranks, f"reads {load.path}"),
            Place(same.updates[0].loss_site, ranks, "backward of the same loss on each"),
        ),
        evidence={"path": load.path, "looks": looks, "different_inputs": same.inputs},
        why=f"{same.replicas.words}; what their models were given differed on all of them in every look before, and is equal in "
        f"all {looks} since",
        prescriptions=(
            Prescription(
                "restore-everything",
                change="save the position and the generator of each rank's data (all_gather_object), and load positions[rank]",
            ),
        ),
        at_ns=load.at_ns,
    )


def _untied(found: list[tuple[int, Untied]]) -> Finding:
    ranks, event = tuple(sorted({rank for rank, _ in found})), found[0][1]
    first, *others = event.names
    return Finding(
        title=f"load_state_dict(assign=True) untied {' and '.join(others)} from {first}: they train apart now",
        ranks=ranks,
        confidence=LIKELY,
        place=event.site,
        places=(Place(event.site, ranks, f"loads into {event.owner}"),),
        evidence={"names": list(event.names), "owner": event.owner},
        why=f"{' and '.join(event.names)} were one parameter before the load; afterwards the optimizer held {len(event.names)}",
        prescriptions=(Prescription("tie-again"),),
        at_ns=event.at_ns,
    )


def _is_of_the_data(recording: Recording, replay: Replay) -> bool:
    """All state was brought back, and other samples were drawn: that is DD704."""
    data = recording.resumption
    return not replay.missing and not replay.anew and data is not None and not data.trouble and not data.healthy


def _replayed(replay: Replay) -> Finding:
    """What `check-resume` has found."""
    site = SourceLine(replay.path, replay.line, replay.function)
    if replay.anew:
        title, what = (
            f"the resumed run started from scratch instead of step {replay.at}",
            "its first weights are freshly initialized",
        )
    else:
        differ = "differs" if len(replay.ranks) == 1 else "differ"
        title = f"resumed after step {replay.at}, {named(replay.ranks)} {differ} in step {replay.step}: {replay.piece}"
        what = "; ".join(replay.missing) or "weights and optimizer state agree; the RNG state or the data does not"
    where = f"{replay.tensor} {replay.words}".strip()
    return Finding(
        title=title,
        ranks=replay.ranks,
        confidence=CERTAIN,
        severity=ERROR if replay.anew or replay.missing else WARNING,
        place=site,
        places=(Place(site, replay.ranks, "reads the checkpoint"),) if site else (),
        evidence={
            "after_step": replay.at,
            "first_step": replay.step,
            "piece": replay.piece,
            "where": where,
            "largest_loss_gap": replay.gap,
        },
        why=f"{what}; losses differ by up to {replay.gap:.3g} in {replay.compared} steps",
        prescriptions=(Prescription("restore-everything"),),
    )


def _finding(found: list[Continuation], restored: Restored, recording: Recording) -> Finding:
    first, ranks = found[0], tuple(sorted(one.rank for one in found))
    pieces, document = first.pieces, first.save.document
    load, some = where_loaded(restored, recording, ranks), len(found) < len(restored.ranks)
    only_noise = all(piece.kind == RNG for piece in pieces)
    # A meter may begin anew on purpose, and so may an average in a second stage of one run.
    may_begin = (OWN, COPIES) if first.start.document.when == AGAIN else (OWN,)
    on_purpose = all(piece.kind in may_begin for piece in pieces)
    meant = some or bool(first.restored) or first.start.document.resumes or _gave_it_a_state(first, recording)
    saved = Place(first.save.site, (first.save.rank,), f"saved here, at step {document.step}")
    places = (Place(load, ranks, "resumes from it"),) if load else ()
    of_schedule = load and any(piece.kind == SCHEDULE for piece in pieces)
    anew = schedule_made_after(recording.sources, load) if of_schedule else SourceLine()
    loaded = _loaded_into(pieces, ranks, recording)
    of_copies = load and any(piece.kind in (COPIES, BESIDE) for piece in pieces)
    rebuilt = (
        rebuilt_after(recording.sources, loaded or load, only=bool(loaded)) if of_copies or loaded else SourceLine()
    )
    ahead = all(piece.kind == AHEAD for piece in pieces)
    moved = moved_after(recording.sources, load, pieces[0].names[0]) if ahead else SourceLine()
    counter = next((piece.names[0] for piece in pieces if piece.kind == UPDATES), "")
    begun = begun_at(recording.sources, counter) if counter else SourceLine()
    how = "and moved the schedule on once more" if ahead else f"without restoring {_joined(pieces)}"
    change = (
        "load the schedule's state, or step it up to there: not both" if ahead else _change(pieces, ranks, recording)
    )
    if document.holds_copies and on_purpose and any(piece.kind == COPIES for piece in pieces):
        change = "look for what makes the copies anew from the weights after they were loaded, and leave that to a fresh start"
    return Finding(
        title=f"{named(ranks)} resumed from step {document.step} {how}",
        ranks=ranks,
        confidence=LIKELY if meant and not on_purpose else POSSIBLE,
        severity=NOTE if only_noise else WARNING,
        place=rebuilt or moved or load or first.save.site,
        places=(
            *((Place(moved, ranks, "moves the schedule on once more"),) if moved else ()),
            *((Place(rebuilt, ranks, "makes anew what the save holds"),) if rebuilt else ()),
            *places,
            *((Place(loaded, ranks, "loads into an optimizer that is not the one that steps"),) if loaded else ()),
            *((Place(begun, ranks, f"begins {counter} anew"),) if begun else ()),
            *((Place(anew, ranks, "makes a schedule anew"),) if anew else ()),
            saved,
        ),
        evidence={
            "saved_step": document.step,
            "run": first.save.run,
            **{piece.kind: f"{piece.differing} of {piece.of} differ" for piece in pieces},
        },
        why="; ".join(words_of(piece) for piece in pieces),
        prescriptions=(Prescription("restore-everything", change=change),),
        at_ns=first.start.document.wall_ns,
    )


def _loaded_into(pieces: tuple[Piece, ...], ranks: tuple[int, ...], recording: Recording) -> SourceLine:
    """Where each of these ranks loaded the state of an optimizer, of which nothing is in the one that steps; else no line."""
    if not any(piece.kind == MOMENTS and piece.words == "none" for piece in pieces):
        return SourceLine()
    loads = [
        next(
            (one.site for one in recording.ranks[rank].noted(StateLoaded) if one.what == "optimizer" and not one.step),
            None,
        )
        for rank in ranks
    ]
    return loads[0] if loads and loads[0] is not None and None not in loads else SourceLine()


def _by_some(parting: ReplicaDivergence, recording: Recording) -> Finding | None:
    """Replicas that part with the steps of their optimizers, whose state some of them had loaded and the others had not."""
    loads = {
        rank: [
            one
            for one in log.noted(StateLoaded)
            if one.what in _OF_STEPS and one.at_ns + log.monotonic_to_wall_ns <= parting.at_ns
        ]
        for rank, log in recording.ranks.items()
        if rank in parting.peers.ranks
    }
    loaded = tuple(sorted(rank for rank, found in loads.items() if found))
    lacking = tuple(sorted(loads.keys() - set(loaded)))
    if not loaded or not lacking or parting.what != PARAMS or len(loads) < len(parting.peers.ranks):
        return None
    if any(set(ranks) & set(loaded) and set(ranks) & set(lacking) for ranks in parting.variants):
        return None  # it is not this that parts them
    what = " and ".join(dict.fromkeys(one.what for one in loads[loaded[0]]))
    return replace(
        _restored_by_some(loads, loaded, lacking, recording),
        title=f"{named(loaded)} restored the state of the {what} alone: {named(lacking)} began with a new one, and the replicas "
        f"differ from {parting.when} on",
        severity=ERROR,
        evidence={"loaded_on": list(loaded), "what": what, "step": parting.step},
        why="weights that are broadcast afterwards are equal; moments, counters and learning rates are not",
        at_ns=parting.at_ns,
        explains=(parting.key,),
    )


def _parts_by_some(recording: Recording) -> Iterator[Finding]:
    """An optimizer of which each rank holds a part was given its state on some ranks only: weights stay equal, the moments of the
    other parts are gone."""
    loads = {
        rank: [one for one in log.noted(StateLoaded) if one.what == "optimizer" and one.names[:1] == (_IN_PARTS,)]
        for rank, log in recording.ranks.items()
    }
    loaded, lacking = (tuple(sorted(rank for rank, one in loads.items() if bool(one) is has)) for has in (True, False))
    resumes = [rank for rank, log in recording.ranks.items() if any(True for _ in log.noted(StateLoaded))]
    if loaded and lacking and set(lacking) <= set(resumes) and len(loads) == recording.world_size:
        yield replace(
            _restored_by_some(loads, loaded, lacking, recording),
            title=f"{named(loaded)} restored its part of the optimizer's state alone: {named(lacking)} keeps other parts, "
            "and goes on without their moments",
            evidence={"loaded_on": list(loaded), "optimizer": _IN_PARTS},
            why=f"{_IN_PARTS} keeps a part of the state on each rank, and load_state_dict takes that part out of the whole; "
            f"{named(lacking)} loaded the model and no optimizer",
        )


def _restored_by_some(
    loads: Mapping[int, Sequence[StateLoaded]], loaded: tuple[int, ...], lacking: tuple[int, ...], recording: Recording
) -> Finding:
    """The places and the cure, where ranks that lack it do not load what others do."""
    first = loads[loaded[0]][0]
    what = " and ".join(dict.fromkeys(one.what for one in loads[loaded[0]]))
    decision = deciding_condition(recording.sources, first.site, None, loaded, lacking)
    place = decision.site if decision is not None and decision.comes_from_the_rank else first.site
    return Finding(
        title="",
        ranks=lacking,
        confidence=LIKELY,
        place=place,
        places=(
            *(
                (Place(place, (), f"decides who restores: `{decision.test}`"),)
                if decision and place != first.site
                else ()
            ),
            Place(first.site, loaded, f"load_state_dict of the {what}"),
        ),
        prescriptions=(
            Prescription(
                "restore-everything", change=f"load on every rank ({at(first.site)}), or broadcast the {what} too"
            ),
        ),
        at_ns=first.at_ns,
    )


_OF_STEPS = frozenset({"optimizer", "scheduler", "scaler"})


def _gave_it_a_state(one: Continuation, recording: Recording) -> bool:
    """Whether the optimizer whose state is gone was given one when the checkpoint had been read."""
    log, step = recording.ranks.get(one.rank), one.start.document.step
    loads = [event for event in log.noted(StateLoaded) if event.step == step] if log is not None else []
    return any(piece.kind == MOMENTS for piece in one.pieces) and any(event.what == "optimizer" for event in loads)


def _of_some(
    finding: Finding,
    found: list[Continuation],
    restored: Restored,
    partings: ReplicaDivergences | None,
    recording: Recording,
) -> Finding:
    """The finding of ranks that lack what others have restored: replicas part with the first step, and that follows from it."""
    lacking, others = set(finding.ranks), restored.ranks.keys() - set(finding.ranks)
    read = {rank for rank, log in recording.ranks.items() if any(not one.step for one in log.noted(Loading))}
    guard = None
    if read and read.isdisjoint(lacking):
        load = where_loaded(restored, recording, tuple(sorted(read)))
        guard = next((one for one in guards_at(recording.sources, load) if one.on_rank), None)
    if guard is not None:
        site = replace(load, line=guard.line)
        reads = Place(load, tuple(sorted(read)), "reads the checkpoint")
        finding = replace(
            finding,
            place=site,
            places=(
                Place(site, (), f"decides who restores: `{guard.only_if}`"),
                reads,
                *(place for place in finding.places if place.site != load),
            ),
            prescriptions=(
                Prescription(
                    "restore-everything", change=f"load on every rank: take {at(load)} out of `if {guard.only_if}`"
                ),
            ),
        )
    apart = (
        [one for one in partings.found if set(one.updates) & lacking and set(one.updates) & others] if partings else []
    )
    if not apart or all(piece.kind == RNG for piece in found[0].pieces):
        return finding
    why = f"{finding.why}; the replicas differ from {apart[0].when} on"
    return replace(finding, severity=ERROR, why=why, explains=tuple(one.key for one in apart))


def _change(pieces: tuple[Piece, ...], ranks: tuple[int, ...], recording: Recording) -> str:
    """What the way of loading makes of an optimizer that is new; "" where nothing is known of it."""
    gone = any(piece.kind == MOMENTS and piece.differing == piece.of for piece in pieces)
    if not gone or not any(one.by == "dcp.load" for rank in ranks for one in recording.ranks[rank].noted(Loading)):
        return ""
    return (
        "torch.distributed.checkpoint.load fills only what the state it is given has already, and a new optimizer has none: give "
        "it get_state_dict(model, optimizer), and bring that back with set_state_dict"
    )


def _misplaced(found: MisplacedShards, restored: Restored, recording: Recording) -> Finding:
    """Ranks that began with the saved shards of another."""
    load, save = where_loaded(restored, recording, found.ranks), found.save
    places = (Place(load, found.ranks, "resume from it"),) if load else ()
    return Finding(
        title=f"{named(found.ranks)} resumed from step {save.document.step} with the shards of rank {save.rank}",
        ranks=found.ranks,
        confidence=CERTAIN,
        severity=ERROR,
        place=save.site or load,
        places=(Place(save.site, (save.rank,), f"saves its own shards, at step {save.document.step}"), *places),
        evidence={
            "saved_step": save.document.step,
            "run": save.run,
            "saved_by": save.rank,
            "parameters": list(found.names[:8]),
        },
        why=f"{', '.join(found.names[:2])} were different parts of the model on these ranks when the earlier run began; now they "
        f"hold, to the bit, what rank {save.rank} had saved of its own part, so their own parts are lost",
        prescriptions=(
            Prescription(
                "restore-everything",
                change='torch.save(state, f"shard_{rank}.pt") on every rank, or torch.distributed.checkpoint.save(state)',
            ),
        ),
        at_ns=save.document.wall_ns,
    )


def _of_others(found: Sequence[Continuation], restored: Restored, recording: Recording) -> Finding:
    """Ranks that began with what others had kept for themselves."""
    ranks, first = tuple(sorted(one.rank for one in found)), found[0].of_others[0]
    load, save = where_loaded(restored, recording, ranks), first.save
    givers = sorted({other.save.rank for one in found for other in one.of_others})
    name, more = first.names[0], f" and {len(first.names) - 1} more" if len(first.names) > 1 else ""
    keep = f"rank {givers[0]} keeps for itself" if len(givers) == 1 else "other ranks keep for themselves"
    known = (
        "had saved another value itself" if first.own_was_saved else f"differed from it in {first.apart} looks at both"
    )
    return Finding(
        title=f"{named(ranks)} resumed from step {save.document.step} with what {keep}: {name}{more}",
        ranks=ranks,
        confidence=LIKELY,
        place=save.site or load,
        places=(
            *((Place(save.site, tuple(givers), f"saves its own, at step {save.document.step}"),) if save.site else ()),
            *((Place(load, ranks, "resume from it"),) if load else ()),
        ),
        evidence={
            "saved_step": save.document.step,
            "had_from": {one.rank: one.of_others[0].save.rank for one in found[:8]},
            "names": list(first.names[:8]),
            "looks": first.apart,
        },
        why=f"rank {found[0].rank} began, to the bit, with the {name} that rank {save.rank} had saved, and {known}: what it kept "
        "is lost, and that of another counts in its place",
        prescriptions=(
            Prescription(
                "restore-everything",
                change="let each rank load what it has saved itself: by its rank in the file's name, or parts[rank] of what "
                "gather_object has brought into one checkpoint",
            ),
        ),
        at_ns=found[0].start.document.wall_ns,
    )


def _joined(pieces: tuple[Piece, ...]) -> str:
    words = [WORDS[WEIGHTS if piece.kind == ROUNDED else piece.kind] for piece in pieces]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _job(*, with_moments: bool) -> Recording:
    from dataclasses import replace

    from distdoctor.testing.gradients import trained_job
    from distdoctor.testing.states import snapshot

    weights, moments = {"head.weight": "b"}, {"head.weight": "m"}
    earlier = (
        snapshot("start", run="one", weights={"head.weight": "a"}),
        snapshot("save", run="one", step=20, weights=weights, moments=moments, site="train.py:42 main"),
    )
    start = snapshot("start", run="two", weights=weights, moments=moments if with_moments else {}, resumes=True)
    return replace(trained_job(1).initial().step().recording(), states=(start,), earlier_states=earlier)


def sick() -> Recording:
    """The optimizer begins anew."""
    return _job(with_moments=False)


def healthy() -> Recording:
    """All of it is there."""
    return _job(with_moments=True)
