"""The answer of `check-resume`, and the two loss curves below it."""

from __future__ import annotations

from distdoctor.recording.rank_set import named
from distdoctor.recording.replay import Replay

ROWS = 8  # of the curves


def render(replay: Replay) -> str:
    """The answer in one line, what was not brought back, and some steps of both curves."""
    lines = [_answer(replay)]
    lines += [f"  not as it was saved: {words}" for words in replay.missing]
    if replay.unstable_at:
        lines.append(
            f"  two uninterrupted runs differ from step {replay.unstable_at} on: losses are compared within {replay.bound:.3g}"
        )
    if replay.losses and not replay.trouble:
        lines += _curves(replay)
    return "\n".join(lines)


def _answer(replay: Replay) -> str:
    if replay.trouble:
        return f"resuming was not compared: {replay.trouble}"
    if replay.anew:
        return (
            f"the resumed run began from nothing instead of step {replay.at}: if your script does not find its checkpoint by "
            "itself, say how it resumes (--resume-args)"
        )
    if not replay.step:
        return f"resumed after step {replay.at}: every bit of the next {replay.compared} steps is that of the uninterrupted run"
    if replay.healthy:
        return f"resumed after step {replay.at}: the losses of the next {replay.compared} steps agree within {replay.bound:.3g}"
    what = " ".join(
        word for word in (replay.piece, f"of {replay.tensor}" if replay.tensor else "", replay.words) if word
    )
    differ = "differs" if len(replay.ranks) == 1 else "differ"
    return f"resumed after step {replay.at}, {named(replay.ranks)} {differ} in step {replay.step}: {what}"


def _curves(replay: Replay) -> list[str]:
    lines = ["", "    step  uninterrupted       resumed    difference"]
    count = len(replay.losses)
    rows = range(count) if count <= ROWS else [*range(ROWS // 2), *(count - n for n in range(ROWS // 2, 0, -1))]
    for number in rows:
        step, one, other = replay.losses[number]
        lines.append(f"{step:8,}  {one:13.6f} {other:13.6f} {other - one:13.2e}")
    return [*lines, f"largest difference of the losses: {replay.gap:.3g}"]
