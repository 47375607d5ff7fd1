"""A resumed run step by step beside the uninterrupted one, as `check-resume` has compared them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import LARGEST_JSON, read_json

FILE = "replay.json"  # in the run folder


@dataclass(frozen=True)
class Replay:
    """`at`: the step after whose checkpoint the resumed run goes on, counted in the uninterrupted one; `compared` steps follow.

    `step`, `ranks`, `piece`, `tensor` and `words` say where it first differs: `step` 0 when nowhere. `missing` are the pieces of
    state that were not brought back, in words. `losses`: (step, uninterrupted, resumed), means over the ranks.
    `unstable_at`: the first step in which two uninterrupted runs of the job differ already, 0 when none does; then `bound` is how
    far their losses are apart. `anew`: it did not go on, it began from nothing. `path`, `line`, `function`: where the checkpoint
    is read. `trouble`: why there is no comparison, "" when there is one.
    """

    at: int = 0
    ended: str = ""  # how the first part ended: `by itself`, `SIGTERM`, `SIGKILL`
    compared: int = 0
    step: int = 0
    ranks: tuple[int, ...] = ()
    piece: str = ""
    tensor: str = ""
    words: str = ""
    missing: tuple[str, ...] = ()
    losses: tuple[tuple[int, float, float], ...] = ()
    unstable_at: int = 0
    bound: float = 0.0
    anew: bool = False
    path: str = ""
    line: int = 0
    function: str = ""
    trouble: str = ""

    @property
    def gap(self) -> float:
        """The largest difference of the losses."""
        return max((abs(one - other) for _, one, other in self.losses), default=0.0)

    @property
    def healthy(self) -> bool:
        if self.trouble or self.anew:
            return False
        return not self.missing and (not self.step or (bool(self.unstable_at) and self.gap <= self.bound))

    def write(self, folder: Path) -> None:
        """Keep it in a run folder."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def read_replay(folder: Path) -> Replay | None:
    """What was compared in this run, None when nothing was (or the file is torn)."""
    try:
        return msgspec.convert(read_json(folder / FILE, LARGEST_JSON), Replay)
    except (UnreadableRecording, msgspec.ValidationError):
        return None
