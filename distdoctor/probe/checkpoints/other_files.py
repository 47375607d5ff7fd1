"""Files that a line of the user's own writes beside checkpoints: arrays, JSON, pickles, pictures, and what gets its final name.

Only those whose name a call is given, or whose open file has one, and which that call writes from the start. What a library
writes for itself (caches, settings) is not noted. Noted is a digest of what is written, as far as a bounded look at it reaches.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from distdoctor.probe import sites, wrappers
from distdoctor.probe.checkpoints.content_digests import digest_of_file, digest_of_value
from distdoctor.probe.checkpoints.paths import absolute
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import FileWritten

MOST = 48  # files that are noted
MOST_EACH = 3  # times of one path
# (module, owner within it, function, places of the file and of what is written): called as torch.save is, or the other way round.
WRITERS = (
    ("json", "", "dump", 1, 0),
    ("pickle", "", "dump", 1, 0),
    ("numpy", "", "save", 0, 1),
    ("numpy", "", "savez", 0, -1),
    ("numpy", "", "savez_compressed", 0, -1),
    ("numpy", "", "savetxt", 0, 1),
    ("PIL.Image", "Image", "save", 1, 0),
    ("pandas", "DataFrame", "to_csv", 1, 0),
    ("pandas", "DataFrame", "to_json", 1, 0),
    ("pandas", "DataFrame", "to_parquet", 1, 0),
    ("matplotlib.figure", "Figure", "savefig", 1, -2),
)
# What hands on between the user's line and a writer: `Path.replace`, `shutil.move`, `plt.savefig`, `save_image`.
_HANDS_ON = tuple(
    path.replace("/", os.sep)
    for path in (
        "/pathlib.py",
        "/shutil.py",
        "matplotlib/pyplot.py",
        "torchvision/utils.py",
        "torch/utils/_contextlib.py",
    )
)


class OtherFiles:
    """Notes them for one rank."""

    def __init__(self, rank: Rank, trace: TraceWriter, guarded: Callable[..., Any]) -> None:
        self._rank, self._trace, self._guarded = rank, trace, guarded
        self._times: Counter[str] = Counter()
        self._missing = list(WRITERS)

    def install(self) -> None:
        """Wrap the writers that are imported by now, and later ones when an optimizer is made."""
        lay = self._guarded(self._lay)
        lay()
        wrappers.listen(torch.optim.Optimizer, "__init__", before=lambda _: lay())

    def _lay(self) -> None:
        for writer in list(self._missing):
            module, kind, name, file, value = writer
            loaded = sys.modules.get(module)
            owner = getattr(loaded, kind, None) if kind else loaded
            if owner is None or not hasattr(owner, name):  # not imported, or not to its end
                continue
            self._missing.remove(writer)
            wrappers.lay(owner, name, self._around(f"{module}.{name}", file, value))

    def _around(self, by: str, file: int, value: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        noted = self._guarded(self._called)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def write(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                noted(by, args, kwargs, file, value, sys._getframe(1))
                return result

            return write

        return make

    def _called(
        self, by: str, args: tuple[Any, ...], kwargs: dict[str, Any], file: int, value: int, frame: FrameType
    ) -> None:
        if len(args) <= max(file, value):
            return
        target = args[file]
        if not isinstance(target, (str, os.PathLike)) and not str(getattr(target, "mode", "")).startswith(("w", "x")):
            return  # a buffer, or a file to which this is added
        path = absolute(target)
        if value == -1:
            written: Any = (*args[1:], kwargs)
        else:
            written = args[value] if value >= 0 else None
        self.note(path, by, lambda: digest_of_value(written), frame)

    def content_of(self, path: str, to: str, frame: FrameType) -> int:
        """The digest of a file that is about to get the name `to`: afterwards that may be the file of another rank."""
        return _looked_at(lambda: digest_of_file(path)) if self._line(to, frame) is not None else 0

    def renamed(self, to: str, frame: FrameType, content: int) -> None:
        """A file that is no checkpoint has got this name."""
        self.note(to, "os.replace", lambda: content, frame)

    def note(self, path: str, by: str, digest: Callable[[], int], frame: FrameType) -> None:
        """One file, where the user's own line wrote it."""
        line = self._line(path, frame)
        if line is not None:
            self._times[path] += 1
            event = FileWritten(path, by, _looked_at(digest), self._rank.step)
            self._trace.note(event, site=self._trace.texts.id(sites.site_of(line)))

    def _line(self, path: str, frame: FrameType | None) -> FrameType | None:
        """The user's line that writes this file; None where it is not noted."""
        if not path or path.startswith("/dev/") or self._times[path] >= MOST_EACH or self._times.total() >= MOST:
            return None
        while frame is not None and frame.f_code.co_filename.endswith(_HANDS_ON):
            frame = frame.f_back
        return frame if frame is not None and sites.is_users(frame) and self._rank.step else None


def _looked_at(digest: Callable[[], int]) -> int:
    """The digest; 0 of a folder, a file that somebody else has taken away, a value that cannot be read."""
    try:
        return digest()
    except Exception as error:
        hand_on(error)
        return 0
