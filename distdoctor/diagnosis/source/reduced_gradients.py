"""Whether what a line reduces is made of gradients. Pure `ast`, within the function that calls the collective.

flat = torch.cat([p.grad.reshape(-1) for p in params])
dist.all_reduce(flat)                     # gradients, whenever it is called
dist.all_reduce(p.data)                   # weights, whatever else the function does with gradients
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.source_file import FunctionNode, dotted, source_file
from distdoctor.recording.called_functions import OPERATIONS
from distdoctor.recording.source_line import SourceLine

_DEEPEST = 4  # names that one is made of by way of others
_FILLING = ("append", "extend", "copy_")


def reduces_gradients(sources: Mapping[str, str], site: SourceLine) -> bool:
    """Whether the tensor that the collective of a line is given is a gradient, or is made of some before that line."""
    file = source_file(sources, site.path)
    if file is None:
        return False
    function = file.function_at(site.line)
    given = [arg for call in calls_at(sources, site, *OPERATIONS) for arg in call.args[:1]]
    seen, names = set[str](), {name for arg in given for name in _names(arg)}
    if any(map(_reads_gradient, given)):
        return True
    for _ in range(_DEEPEST):
        values = [value for value, made in _bindings(function) if made & names and value.lineno <= site.line]
        if any(map(_reads_gradient, values)):
            return True
        seen |= names
        names = {name for value in values for name in _names(value)} - seen
    return False


def _bindings(function: FunctionNode | ast.Module) -> Iterator[tuple[ast.expr, set[str]]]:
    """(an expression, the names that are made of it or filled with it) in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield node.value, {name for target in node.targets for name in _names(target)}
        elif isinstance(node, ast.For):
            yield node.iter, _names(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING:
            yield from ((arg, _names(node.func.value)) for arg in node.args)


def _names(node: ast.AST) -> set[str]:
    """The names in it, an attribute by its whole name: two attributes of `self` have nothing to do with one another."""
    return {dotted(one) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)} - {"", "self", "cls"}


def _reads_gradient(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Attribute) and one.attr == "grad" and isinstance(one.ctx, ast.Load)
        for one in ast.walk(node)
    )
