"""Gradients that are reduced in a copy, which nobody writes back.

Pure `ast`, within the function that calls the collective: `buffer = p.grad.contiguous(); all_reduce(buffer)`, and no line that
brings `buffer` into a gradient again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.source_file import FunctionNode, last_word, source_file
from distdoctor.recording.recording import SourceLine

ALWAYS = frozenset({"clone", "cat", "stack", "flatten_dense_tensors", "_flatten_dense_tensors", "parameters_to_vector"})
SOMETIMES = frozenset(
    {"contiguous", "to", "float", "half", "bfloat16", "double", "type", "reshape", "flatten", "cpu", "cuda"}
)
# What may bring a value back that the function holds under a name.
_WRITES = frozenset({"copy_", "set_", "_foreach_copy_", "vector_to_parameters", "unflatten_dense_tensors",
                     "_unflatten_dense_tensors", "add_", "swap_tensors"})  # fmt: skip


@dataclass(frozen=True)
class ReducedCopy:
    """The line that takes the copy, as it is written. `always`: it is one whatever the tensor looks like."""

    taken: SourceLine
    text: str
    always: bool


def reduced_copy(sources: Mapping[str, str], reduced: SourceLine) -> ReducedCopy | None:
    """The copy of a gradient that the all_reduce of a line is given, and that goes with the function; None where there is none,
    where the function hands it on, or where something of it is written back."""
    file = source_file(sources, reduced.path)
    if file is None:
        return None
    function = file.function_at(reduced.line)
    for call in calls_at(sources, reduced, "all_reduce")[-1:]:
        given = call.args[0] if call.args else None
        taken, name = (_bound(function, given.id), given.id) if isinstance(given, ast.Name) else (given, "")
        word = _copying(taken)
        if taken is None or not word or not any(one.attr == "grad" for one in _attributes(taken)):
            continue
        if any(_brings_back(node, name) for node in ast.walk(function)):
            return None
        return ReducedCopy(SourceLine(reduced.path, taken.lineno, reduced.function), ast.unparse(taken), word in ALWAYS)
    return None


def _bound(function: FunctionNode | ast.Module, name: str) -> ast.expr | None:
    """What the one assignment to a name gives it."""
    bound = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
    ]
    return bound[0] if len(bound) == 1 else None


def _copying(value: ast.expr | None) -> str:
    """The word by which an expression copies a tensor; "" where none is seen."""
    word = last_word(value.func) if isinstance(value, ast.Call) else ""
    return word if word in ALWAYS | SOMETIMES else ""


def _brings_back(node: ast.AST, name: str) -> bool:
    """Whether a statement sets a gradient, writes a tensor as a whole, or gives the copy to somebody else."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(one.attr in ("grad", "data") for target in targets for one in _attributes(target))
    if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
        return _mentions(node.value, name)
    if not isinstance(node, ast.Call):
        return False
    word = last_word(node.func)
    if word in _WRITES:
        return True
    own = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == name
    handed_on = any(_mentions(one, name) for one in (*node.args, *(word.value for word in node.keywords)))
    return bool(name) and handed_on and word != "all_reduce" and not own


def _mentions(expression: ast.AST, name: str) -> bool:
    return bool(name) and any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(expression))


def _attributes(expression: ast.AST) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(expression) if isinstance(node, ast.Attribute))
