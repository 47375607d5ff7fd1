"""What a resumed job draws beside the uninterrupted one, as `check-data --resume` has compared them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import LARGEST_JSON, read_json

FILE = "resumption.json"  # in the run folder


@dataclass(frozen=True)
class Resumption:
    """Numbers are of samples, over all ranks. `repeated`: drawn more often than without the interruption, `lost`: less often,
    both in the epochs of the uninterrupted job. `epoch` was under way when the job ended, `into_epoch` samples of it were drawn.

    `order`: how the resumed job goes on, in words; `wrong_order`: it repeats the order of an earlier epoch although every
    sample comes once. `examples`: some that are repeated, then some that are lost. `path`, `line`, `function`: where the
    training loader is made. `trouble`: why there is no comparison, "" when there is one.
    """

    step: int = 0
    epoch: int = 0
    into_epoch: int = 0
    of_epoch: int = 0
    repeated: int = 0
    lost: int = 0
    order: str = ""
    wrong_order: bool = False
    examples: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    ranks: tuple[int, ...] = ()
    path: str = ""
    line: int = 0
    function: str = ""
    keep_one_in: int = 1
    trouble: str = ""

    @property
    def healthy(self) -> bool:
        return not self.trouble and not self.repeated and not self.lost and not self.wrong_order

    def write(self, folder: Path) -> None:
        """Keep it in a run folder."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def read_resumption(folder: Path) -> Resumption | None:
    """What was compared in this run, None when nothing was (or the file is torn)."""
    try:
        fields = read_json(folder / FILE, LARGEST_JSON)
        return msgspec.convert(fields, Resumption)
    except (UnreadableRecording, msgspec.ValidationError):
        return None
