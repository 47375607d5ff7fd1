"""Sums over ranks of what squares of gradients add up to, in a function that scales gradients. Pure `ast`.

total = sum(p.grad.norm() ** 2 for p in parameters)
dist.all_reduce(total, group=group)
for p in parameters:
    p.grad.mul_(limit / total.sqrt())
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

SQUARES = ("square", ".pow(", "** 2", "norm(")
SCALES = (".mul_(", ".div_(", "_foreach_mul_(", "grad *=", "clip_grads_with_norm_(")
_DIVIDES = re.compile(r"world|\bAVG\b|\bn_?ranks\b|\.size\(\)", re.IGNORECASE)
_PUTS = re.compile(r"_$|^append$")  # in place
STEPS = 4  # from what is summed back to the gradients


def clips_by_summed_squares(sources: Mapping[str, str], site: SourceLine) -> bool:
    """Whether the all_reduce of a line sums what is made of squared gradients, in a function that also scales gradients and says
    nothing of the number of ranks."""
    program = program_of(sources)
    for call in calls_at(sources, site, "all_reduce"):
        scope = program.scope_of(call)
        body = "\n".join(ast.unparse(one) for one in getattr(scope.node, "body", ()) if not _is_docstring(one))
        if not call.args or not scope.name or _is_divided(program, call):
            continue
        if any(word in body for word in SCALES) and not _DIVIDES.search(body):
            made_of = " ".join(_made_of(program, call, call.args[0]))
            if ".grad" in made_of and any(word in made_of for word in SQUARES):
                return True
    return False


def _made_of(program: UserProgram, call: ast.Call, value: ast.expr) -> Iterator[str]:
    """What a value is made of in the body of a call, above it, and in the user's functions that return it: as written."""
    above = [one for one in program.inside(program.scope_of(call)) if getattr(one, "lineno", call.lineno) < call.lineno]
    names = {ast.unparse(value)}
    yield from names
    for _ in range(STEPS):
        given = [one for node in above for target, one in _given(node) if target in names]
        yield from map(ast.unparse, given)
        calls = (one for value in given for one in ast.walk(value) if isinstance(one, ast.Call))
        yield from (ast.unparse(scope.node) for one in calls for scope in program.targets(one))
        names = {one.id for value in given for one in ast.walk(value) if isinstance(one, ast.Name)} - names


def _is_divided(program: UserProgram, call: ast.Call) -> bool:
    """Whether the body divides or multiplies what the call has summed, by whatever name: then it may be their mean."""
    name = ast.unparse(call.args[0])

    def is_it(node: ast.AST) -> bool:
        return isinstance(node, ast.expr) and ast.unparse(node) == name

    for node in program.inside(program.scope_of(call)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
            if is_it(node.left) or (isinstance(node.op, ast.Mult) and is_it(node.right)):
                return True
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div | ast.Mult) and is_it(node.target):
            return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_it(node.func.value):
            divides = node.func.attr.rstrip("_") in ("div", "mul", "true_divide")
            if divides:
                return True
    return False


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(a name, what it gets) of a statement: assigned, added, put in place, appended, or gone through."""
    if isinstance(node, ast.Assign):
        yield from ((ast.unparse(target), node.value) for target in node.targets)
    elif isinstance(node, ast.AugAssign):
        yield ast.unparse(node.target), node.value
    elif isinstance(node, ast.For | ast.comprehension):
        yield ast.unparse(node.target), node.iter
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _PUTS.search(node.func.attr):
        yield from ((ast.unparse(node.func.value), one) for one in node.args)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
