"""Autograd functions that gather, and whose backward hands on nothing but the rank's own part of the gradient. Pure `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.rank_guard import is_about_rank
from distdoctor.diagnosis.source.rank_local import COLLECTIVES
from distdoctor.diagnosis.source.source_file import Scope, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

_PARTS = frozenset({"chunk", "split", "narrow", "tensor_split", "select"})


@dataclass(frozen=True)
class OwnPart:
    """The line that gathers, and the one that gives back this rank's part of the gradient."""

    name: str
    gathers: SourceLine
    returns: SourceLine


def own_part_functions(sources: Mapping[str, str]) -> Iterator[OwnPart]:
    """Such functions of the user's. One whose backward multiplies, by the number of ranks it may be, is none."""
    program = program_of(sources)
    for forward in program.functions.get("forward", ()):
        bases = map(last_word, program.classes.get(forward.of_class, ()))
        backwards = program.methods(
            {forward.of_class}, "backward"
        )  # with those of classes derived from it, which share its forward
        if "Function" not in bases or len(backwards) != 1:
            continue
        (backward,) = backwards
        gathers = next((one for one in _calls(program, forward) if last_word(one.func).startswith("all_gather")), None)
        returned = next((one for one in program.returned(backward) if _takes_own_part(program, backward, one)), None)
        if gathers is not None and returned is not None and not _combines(program, backward):
            yield OwnPart(forward.of_class, forward.line(gathers), backward.line(returned))


def _calls(program: UserProgram, scope: Scope) -> Iterator[ast.Call]:
    return (node for node in program.inside(scope) if isinstance(node, ast.Call))


def _takes_own_part(program: UserProgram, backward: Scope, returned: ast.expr) -> bool:
    """Whether what is given back is cut out by the rank, there or where its name is stored."""
    names = [node.id for node in ast.walk(returned) if isinstance(node, ast.Name)]
    stored = [value for name in names for _, value in program.stores(name, backward)]
    return any(
        (isinstance(node, ast.Subscript) and any(is_about_rank(one) for one in ast.walk(node.slice)))
        or (isinstance(node, ast.Call) and last_word(node.func) in _PARTS and any(map(is_about_rank, ast.walk(node))))
        for value in (returned, *stored)
        for node in ast.walk(value)
    )


def _combines(program: UserProgram, backward: Scope) -> bool:
    """Whether ranks exchange something in it, be it in a function that it calls, or something is multiplied."""
    for node in program.inside(backward):
        if isinstance(node, ast.Call):
            inner = [one for target in program.targets(node) for one in _calls(program, target)]
            if any(COLLECTIVES.match(last_word(one.func)) or last_word(one.func) == "mul" for one in (node, *inner)):
                return True
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Mult):
            return True
    return False
