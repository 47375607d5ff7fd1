"""
DD706 resume-restores-other-state: the job goes on with the saved weights, and without other state that had been there.

What it means    A training is more than its weights: the optimizer's moments, the schedule, the loss scale, running statistics,
                 averaged copies, the random state. A piece of it was not saved, or not loaded, or not on every rank.
Why it hurts     Adam without its moments takes wrong steps for a while, a warm-up begins anew, an average forgets: the loss
                 jumps and nobody knows why. Where only some ranks have it, replicas drift apart.
How we know      Digests of every piece were taken when the earlier run of this program saved, and when this one began to train.
                 This one began with those weights to the bit (or read that file), and the piece is another one. Likely: whether
                 it was meant is not on record. Possible, when nothing but the weights was restored and no argument speaks of
                 resuming: that may be a fresh start from trained weights.
What to do       Save and load all of it in one place, on every rank. `distdoctor check-resume` shows what it changes.
When it is fine  Fine-tuning from trained weights. The random state alone is a note: no result is wrong by it.
Source           PyTorch, "Saving and Loading a General Checkpoint".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.checkpoint.restored import RNG, ROUNDED, Continuation, Piece, Restored
from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Loading, StateLoaded
from distdoctor.recording.trace.state_file import BUFFERS, COPIES, LR, MOMENTS, SCALE, SCHEDULE, WEIGHTS

_WORDS = {
    WEIGHTS: "the weights",
    ROUNDED: "weights rounded to {words}",
    BUFFERS: "the buffers",
    MOMENTS: "the optimizer's state",
    COPIES: "the copies of the model (EMA, target)",
    SCALE: "the loss scale",
    SCHEDULE: "the schedule",
    LR: "the learning rate",
    RNG: "the random state",
}


@check("DD706", "resume-restores-other-state", severity=WARNING, live=False)
def examine(restored: Restored, recording: Recording) -> Iterator[Finding]:
    alike: dict[tuple[str, ...], list[Continuation]] = defaultdict(list)
    for one in restored.ranks.values():
        if one.pieces:
            alike[tuple(piece.kind for piece in one.pieces)].append(one)
    for found in alike.values():
        yield _finding(found, restored, recording)


def _finding(found: list[Continuation], restored: Restored, recording: Recording) -> Finding:
    first, ranks = found[0], tuple(sorted(one.rank for one in found))
    pieces, document = first.pieces, first.save.document
    load, some = _load_line(ranks, first, recording), len(found) < len(restored.ranks)
    only_noise = all(piece.kind == RNG for piece in pieces)
    meant = some or bool(first.restored) or first.start.document.resumes
    saved = Place(first.save.site, (first.save.rank,), f"was saved here, at step {document.step}")
    places = (Place(load, ranks, "goes on from it"),) if load else ()
    return Finding(
        title=f"{named(ranks)} resumed from step {document.step} without {_joined(pieces)} of then",
        ranks=ranks,
        confidence=LIKELY if meant else POSSIBLE,
        severity=NOTE if only_noise else WARNING,
        place=load or first.save.site,
        places=(*places, saved),
        evidence={
            "saved_step": document.step,
            "run": first.save.run,
            **{piece.kind: f"{piece.differing} of {piece.of} differ" for piece in pieces},
        },
        why="; ".join(_words(piece) for piece in pieces),
        prescriptions=(Prescription("restore-everything"),),
        at_ns=first.start.document.wall_ns,
    )


def _joined(pieces: tuple[Piece, ...]) -> str:
    words = [_WORDS[WEIGHTS if piece.kind == ROUNDED else piece.kind] for piece in pieces]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _words(piece: Piece) -> str:
    what = _WORDS[piece.kind].format(words=piece.words)
    if not piece.names or piece.kind in (SCALE, SCHEDULE, LR):
        return f"{what}: {piece.words}"
    those = ", ".join(piece.names[:2])
    if piece.kind == ROUNDED:
        return f"{what}: all {piece.of}, {those} first"
    how = "are gone" if piece.words == "none" else "differ"
    return f"{what}: {piece.differing} of {piece.of} {how}, {those} first"


def _load_line(ranks: tuple[int, ...], first: Continuation, recording: Recording) -> SourceLine:
    """Where the checkpoint was read; where that is not on record, where state was loaded."""
    logs = [recording.ranks[rank] for rank in (*ranks, *recording.ranks) if rank in recording.ranks]
    paths = set(first.save.document.paths)
    loads = [event for log in logs for event in log.noted(Loading)]
    chosen = [event.site for event in loads if event.path in paths] or [event.site for event in loads]
    chosen += [event.site for log in logs for event in log.noted(StateLoaded)]
    return next((site for site in chosen if site), SourceLine())


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
