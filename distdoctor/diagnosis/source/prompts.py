"""Calls that stop a program at a prompt: `breakpoint()`, `pdb.set_trace()`."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.recording.source_line import SourceLine

_PROMPTS = ("breakpoint", "set_trace", "embed", "interact")


def prompt_before(sources: Mapping[str, str], site: SourceLine) -> SourceLine | None:
    """The call that opened the prompt: pdb stops at the line after it. None where the source shows none."""
    file = source_file(sources, site.path)
    calls = [one for one in file.nodes(ast.Call) if last_word(one.func) in _PROMPTS] if file is not None else []
    before = [one.lineno for one in calls if one.lineno <= site.line]
    if file is not None:  # the line after the last one of a loop is its head
        ends = {one.body[-1].end_lineno for one in file.nodes(ast.For, ast.While) if one.lineno == site.line}
        before = [one.lineno for one in calls if one.end_lineno in ends] or before
    return SourceLine(site.path, max(before), site.function) if before else None
