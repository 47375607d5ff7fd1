"""Buffers that the user's source brings together over ranks: what a collective has carried is written back into them. Pure `ast`.

for total in totals:                        # sums of this rank
    dist.all_reduce(total)
stats.running_mean.copy_(totals[0] / n)
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping

from distdoctor.diagnosis.source.rank_local import COLLECTIVES
from distdoctor.diagnosis.source.source_file import Scope, dotted, last_word, lineno
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.diagnosis.source.writes import is_in_place
from distdoctor.recording.recording import SourceLine


def brought_together(sources: Mapping[str, str], names: Iterable[str], called: Iterable[SourceLine]) -> frozenset[str]:
    """Of buffers (`scale.running_mean`) those that some function writes with what came out of a collective of its own: `called`
    are the lines that called some."""
    wanted = {name: name.rpartition(".")[2] for name in names}
    if not wanted:
        return frozenset()
    lines: dict[str, set[int]] = defaultdict(set)
    for site in called:
        lines[site.path].add(site.line)
    scopes = [scope for scope in program_of(sources).scopes.values() if scope.path in lines]
    written = {word for scope in scopes for word in _written(scope, lines[scope.path])}
    return frozenset(name for name, word in wanted.items() if word in written)


def _written(scope: Scope, called: Container[int]) -> Iterator[str]:
    """The attributes that are given what a collective carried, or that are handed to one."""
    carrying = [
        call
        for call in scope.calls
        if COLLECTIVES.match(last_word(call.func))
        and (any(line in called for line in _lines_of(call)) or _was_handed(call, scope, called))
    ]
    if not carrying:
        return
    carried = {name for call in carrying for arg in call.args for name in _names(arg)}
    for loop in scope.loops:
        if isinstance(loop, ast.For) and carried & _names(loop.target):
            carried |= _names(loop.iter)
    first = min(lineno(call) for call in carrying)
    for one in sorted(scope.assigns, key=lineno):
        if one.value is None or lineno(one) < first:
            continue
        if carried & _names(one.value) or any(call in carrying for call in ast.walk(one.value)):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            carried |= {name for target in targets for name in _names(target)}
    yield from (name.removesuffix(".data").rpartition(".")[2] for name in carried if "." in name)
    for call in scope.calls:
        writes = isinstance(call.func, ast.Attribute) and is_in_place(call.func.attr) and lineno(call) > first
        if writes and any(carried & _names(arg) for arg in call.args):
            yield dotted(call.func.value).removesuffix(".data").rpartition(".")[2]  # type: ignore[attr-defined]


def _was_handed(call: ast.Call, scope: Scope, called: Container[int]) -> bool:
    """Whether what is called was given to the function (`lambda t: dist.all_reduce(t)`), by one in which such a call was made."""
    if dotted(call.func) not in scope.parameters:
        return False
    givers = (one for one in scope.file.scopes if one.name and any(last_word(c.func) == scope.name for c in one.calls))
    return any(line in called for giver in givers for line in _lines_of(giver.node))


def _lines_of(node: ast.AST) -> range:
    return range(lineno(node), (getattr(node, "end_lineno", None) or lineno(node)) + 1)


def _names(node: ast.AST) -> set[str]:
    """The names and dotted names in an expression, the longest of each."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name | ast.Attribute) and (name := dotted(one)):
            found.add(name)
    return found - {"self"}
