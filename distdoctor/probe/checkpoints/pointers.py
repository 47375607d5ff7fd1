"""Small files that name the newest checkpoint: `latest`, `last_checkpoint`, `latest_checkpointed_iteration.txt`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from distdoctor.probe.interruptions import hand_on

_NAME = re.compile(r"^(latest|last)([-_.]?(checkpoint|ckpt|checkpointed_iteration|epoch|step))?(\.(txt|json))?$", re.I)
LARGEST = 1024  # bytes
ENTRIES = 2048  # of a folder


def pointers_in(folder: str) -> Iterator[tuple[str, str, bool]]:
    """(file, what it names, whether that is there). Links count; what names nothing that looks like a path does not."""
    try:
        with os.scandir(folder) as entries:
            everything = [entry.name for _, entry in zip(range(ENTRIES), entries, strict=False)]
    except OSError as error:
        hand_on(error)
        return
    for name in filter(_NAME.match, everything):
        path = os.path.join(folder, name)
        if os.path.islink(path):
            yield path, os.path.join(folder, os.readlink(path)), os.path.exists(path)
            continue
        words = _words(path)
        if words:
            target = os.path.join(folder, words)
            # A tag may be a part of the file's name; a path may count from where the program runs.
            there = os.path.exists(target) or os.path.exists(words) or any(words in one for one in everything)
            yield path, target, there


def _words(path: str) -> str:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
            return ""
        with open(path, encoding="utf-8") as file:
            words = file.read(LARGEST).strip()
    except (OSError, ValueError) as error:
        hand_on(error)
        return ""
    # A bare number is an epoch or a step: which file it means is known to the program alone.
    return words if re.fullmatch(r"[\w./=+ -]{1,255}", words) and not words.isdigit() else ""
