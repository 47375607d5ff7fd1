"""The one maker of patches: what a finding's edits make of the source that ran, checked, as `git apply` takes it."""

from __future__ import annotations

import builtins
import posixpath
import re
import symtable
from collections.abc import Mapping, Sequence
from functools import lru_cache

from distdoctor.diagnosis.source.edits import Edit, Patch, applied, diff
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import SOURCE_MARK, source_digest, source_of

_QUOTED = re.compile(r'["\\\x00-\x1f\x7f]')  # git writes such names in its own way
_ALWAYS_THERE = frozenset({*dir(builtins), "__file__", "__name__", "__doc__", "__path__", "__builtins__", "__spec__"})


def patch_of(
    edits: Sequence[Edit],
    sources: Mapping[str, str],
    digests: Mapping[str, frozenset[str]] | None = None,
    cwd: str = "",
) -> Patch | None:
    """The patch of these edits, None where one of them cannot be trusted: its file is not the one that ran, it does not go in,
    the result is no Python or uses a name that nobody defines.

    `digests`: of the files that the ranks ran; None: the sources are what they are. Paths are told relative to `cwd` when all of
    them lie below it, else to the folder that they share.
    """
    found = []
    for path in sorted({edit.path for edit in edits}):
        before, mine = sources.get(path, ""), [edit for edit in edits if edit.path == path]
        digest = source_digest(before.encode(errors="replace"))
        if digests is not None and digests.get(path) != frozenset({digest}):
            return None
        after, done = applied(before, mine) if before else ("", 0)
        if done != len(set(mine)) or after == before or _undefined(after) - _undefined(before):
            return None
        found.append((path, digest, before, after))
    folder = _folder([path for path, *_ in found], cwd)
    names = [posixpath.relpath(path, folder) if folder else path for path, *_ in found]
    if not found or any(_QUOTED.search(name) or name.startswith(("/", "../")) for name in names):
        return None
    text = "".join(diff(name, before, after) for name, (_, _, before, after) in zip(names, found, strict=True))
    return Patch(text, folder, tuple((path, digest) for path, digest, *_ in found))


def sources_that_ran(recording: Recording) -> dict[str, frozenset[str]]:
    """path -> the digests of what the ranks ran under that name, as they noted it themselves."""
    found: dict[str, frozenset[str]] = {}
    for log in recording.ranks.values():
        for path, digest in _noted(log.texts):
            found[path] = found.get(path, frozenset()) | {digest}
    return found


@lru_cache(maxsize=256)
def _noted(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    noted = (source_of(text) for text in texts if text.startswith(SOURCE_MARK))
    return tuple(one for one in noted if one is not None)


def working_folder(recording: Recording) -> str:
    """Where the ranks were started, "" where they did not note it or not the same."""
    found = {str(log.environment.get("cwd", "")) for log in recording.ranks.values()}
    return found.pop() if len(found) == 1 else ""


def _folder(paths: Sequence[str], cwd: str) -> str:
    if not paths or not all(path.startswith("/") for path in paths):
        return ""
    below = cwd.rstrip("/") + "/"
    if cwd and all(path.startswith(below) for path in paths):
        return cwd
    return posixpath.commonpath([posixpath.dirname(path) for path in paths])


def _undefined(text: str) -> frozenset[str]:
    """The names that a file uses and neither it nor Python defines."""
    try:
        module = symtable.symtable(text, "<patched>", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    known = {one.get_name() for one in module.get_symbols() if one.is_assigned() or one.is_imported()}
    used: set[str] = set()
    waiting: list[symtable.SymbolTable] = [module]
    while waiting:
        table = waiting.pop()
        for one in table.get_symbols():
            if one.is_declared_global() and one.is_assigned():
                known.add(one.get_name())
            if one.is_referenced() and (one.is_global() or table is module):
                used.add(one.get_name())
        waiting += table.get_children()
    return frozenset(used - known - _ALWAYS_THERE)
