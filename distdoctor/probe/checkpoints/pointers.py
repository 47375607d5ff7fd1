"""Small files that name the newest checkpoint: `latest`, `last_checkpoint`, `latest_checkpointed_iteration.txt`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from distdoctor.probe.interruptions import hand_on

_NAME = re.compile(r"^(latest|last)([-_.]?(checkpoint|ckpt|checkpointed_iteration|epoch|step))?(\.(txt|json))?$", re.I)
LARGEST = 1024  # bytes
ENTRIES = 2048  # of a folder
BESIDE = 4  # names that are shown


@dataclass(frozen=True)
class FoundPointer:
    """A file that names a checkpoint. `beside`: others of the same kind that are there, where the target is not."""

    path: str
    target: str
    there: bool
    beside: tuple[str, ...] = ()


def pointers_beside(saved: Collection[str], most: int) -> Iterator[FoundPointer]:
    """The pointers in the folders of these files, and in those above that hold a folder for each checkpoint, or the folder of all
    of them: the last `most`. Above, and in JSON, only what was saved here counts as named: whatever else lies there is somebody
    else's. Two folders above other runs have names like these, so there it is the whole path that counts."""
    own = _folders_of([*saved][::-1])
    above = _folders_of(own)
    paths = (*saved, *own)
    names = {os.path.basename(path) for path in paths}
    for folder in own[:most]:
        yield from pointers_in(folder, paths)
    for folder in above[:most]:
        if folder not in own:
            yield from (one for one in pointers_in(folder, paths) if os.path.basename(one.target) in names)
    for folder in _folders_of(above)[:most]:
        if folder not in own and folder not in above:
            yield from (one for one in pointers_in(folder, paths) if os.path.normpath(one.target) in paths)


def _folders_of(paths: Collection[str]) -> list[str]:
    return list(dict.fromkeys(os.path.dirname(path) for path in paths if path))


def pointers_in(folder: str, saved: Collection[str] = ()) -> Iterator[FoundPointer]:
    """Links count; what names nothing that looks like a path does not, nor does JSON that names none of the paths `saved`. Such a
    path is there as well where the name is the end of it: `state.pt` may be meant in the folder of its step."""
    try:
        everything = _entries(folder)
    except OSError as error:
        hand_on(error)
        return
    for name in filter(_NAME.match, everything):
        path = os.path.join(folder, name)
        if os.path.islink(path):
            yield FoundPointer(path, os.path.join(folder, os.readlink(path)), os.path.exists(path))
            continue
        words = _words(path, saved)
        if words:
            target = os.path.join(folder, words)
            # A tag may be a part of the file's name; a path may count from where the program runs.
            ends = (path for path in saved if path.endswith("/" + words.strip("/")))
            there = any(map(os.path.exists, (target, words, *ends))) or any(words in one for one in everything)
            yield FoundPointer(path, target, there, () if there else _alike(target))


def _entries(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for _, entry in zip(range(ENTRIES), entries, strict=False)]


def _alike(target: str) -> tuple[str, ...]:
    """Entries of its folder that differ from a name in their numbers alone."""
    folder, name = os.path.split(target)
    try:
        everything = _entries(folder)
    except OSError as error:
        hand_on(error)
        return ()
    pattern = re.sub(r"\d+", "0", name)
    return tuple(sorted(one for one in everything if re.sub(r"\d+", "0", one) == pattern)[-BESIDE:])


def _words(path: str, saved: Collection[str]) -> str:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
            return ""
        with open(path, encoding="utf-8") as file:
            words = file.read(LARGEST).strip()
    except (OSError, ValueError) as error:
        hand_on(error)
        return ""
    if words.startswith("{"):
        return _named_in(words, saved)
    # A bare number is an epoch or a step: which file it means is known to the program alone.
    return words if re.fullmatch(r"[\w./=+ -]{1,255}", words) and not words.isdigit() else ""


def _named_in(text: str, saved: Collection[str]) -> str:
    """The value in a JSON object that is the name of something that was saved."""
    try:
        values = json.loads(text).values()
    except (ValueError, RecursionError) as error:
        hand_on(error)
        return ""
    names = {os.path.basename(path) for path in saved}
    return next((one for one in values if isinstance(one, str) and os.path.basename(one) in names), "")
