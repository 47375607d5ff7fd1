"""Functions that gather tensors of other lengths: they fill them up to the longest, and hand on what was filled. Pure `ast`.

dist.all_gather(sizes, size)
padded = x.new_zeros(max(sizes), dim)
padded[: len(x)] = x
dist.all_gather(out, padded)
return torch.cat(out)            # and never asks for the sizes again
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from distdoctor.diagnosis.source.source_file import Scope, keyword, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_OF_NOTHING = frozenset({"zeros", "new_zeros", "zeros_like", "empty", "new_empty"})
_ONCE_MORE = frozenset({"repeat", "expand", "tile", "repeat_interleave"})
_LENGTHS = frozenset({"shape", "size", "len", "numel", "shape_as_tensor"})


class UncutGather(NamedTuple):
    """The line that gathers what was filled up, the one that fills it, and the one that hands on the whole."""

    gathers: SourceLine
    fills: SourceLine
    returns: SourceLine


def uncut_gathers(sources: Mapping[str, str]) -> Iterator[UncutGather]:
    """Every function of the user's that does so."""
    if not any("all_gather" in text and "max" in text for text in sources.values()):
        return
    program = program_of(sources)
    for scope in program.scopes.values():
        if (found := _of_function(program, scope)) is not None:
            yield found


def _of_function(program: UserProgram, scope: Scope) -> UncutGather | None:
    nodes = list(program.inside(scope))
    calls = [node for node in nodes if isinstance(node, ast.Call) and last_word(node.func) == "all_gather"]
    if len(calls) != 2 or any(len(call.args) < 2 for call in calls):
        return None
    first, second = sorted(calls, key=lambda one: one.lineno)
    sizes, gathered, filled = _name(first.args[0]), _name(second.args[0]), _name(second.args[1])
    made = _assigned(nodes)
    size = made.get(_name(first.args[1]), [first.args[1]])
    if not (sizes and gathered and filled) or not _asks(size, _LENGTHS):
        return None
    known = {sizes}  # and what is made of them, but for the longest
    longest = set[str]()
    for name, values in made.items():
        later = [value for value in values if value.lineno > first.lineno]
        if name != gathered and any(_reads(value, known) for value in later):
            (longest if _asks(values, {"max", "amax"}) else known).add(name)
        elif name not in (gathered, filled) and any(_reads(value, longest) for value in later):
            longest.add(name)
    fills = [one for one in made.get(filled, []) if _fills(one) and (_reads(one, longest) or _asks([one], {"max"}))]
    used_later = any(isinstance(n, ast.Name) and n.id in known and n.lineno > second.lineno for n in nodes)
    returned = [
        node for node in nodes if isinstance(node, ast.Return) and node.value and _reads(node.value, {gathered})
    ]
    if not fills or used_later or len(returned) != 1:
        return None
    return UncutGather(scope.line(second), scope.line(fills[0]), scope.line(returned[0]))


def _name(value: ast.expr) -> str:
    """Of a variable; empty for anything else."""
    return value.id if isinstance(value, ast.Name) else ""


def _assigned(nodes: list[ast.AST]) -> dict[str, list[ast.expr]]:
    """What each variable is made of, in the order of the lines."""
    found: dict[str, list[ast.expr]] = {}
    for node in sorted((node for node in nodes if isinstance(node, ast.Assign)), key=lambda one: one.lineno):
        for target in node.targets:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(node.value)
    return found


def _reads(value: ast.AST, names: set[str]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(value))


def _asks(values: list[ast.expr], words: frozenset[str] | set[str]) -> bool:
    return any(last_word(one) in words for value in values for one in ast.walk(value) if isinstance(one, ast.expr))


def _fills(value: ast.expr) -> bool:
    """Whether it makes room filled with what cannot be told from a value: zeros, nothing in particular, rows once more."""
    for one in ast.walk(value):
        if isinstance(one, ast.Call) and last_word(one.func) in _OF_NOTHING | _ONCE_MORE:
            return True
        if isinstance(one, ast.Call) and last_word(one.func) == "pad":
            return len(one.args) < 4 and keyword(one, "value") is None
    return False
