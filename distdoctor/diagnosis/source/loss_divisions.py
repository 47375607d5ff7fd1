"""The divisions that a loss goes through before its backward pass, followed from there into what made it. Pure `ast`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.given_values import all_made_of
from distdoctor.diagnosis.source.rank_local import collectives_behind, is_made_the_same, step_of
from distdoctor.diagnosis.source.rank_words import names_world
from distdoctor.diagnosis.source.source_file import FunctionNode, last_word, lineno, source_file
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

_ADDS_UP = re.compile("reduce|all_gather")  # what a broadcast hands on is nobody's sum
MOST = 40  # expressions that are followed
DIVIDES = frozenset({"div", "div_", "true_divide", "divide", "divide_"})
_IN_PLACE = frozenset({"div_", "divide_", "mul_", "multiply_"})
_AS_IT_IS = frozenset(
    {"values", "to", "float", "double", "half", "bfloat16", "cuda", "cpu", "scale", "sum", "squeeze", "view"}
)


@dataclass(frozen=True)
class Division:
    """`total / tokens`, and whether a collective has made the divisor the same on all ranks, as far as the source shows it.

    `summed_at`: the line of that collective, where the divisor was followed to it.
    """

    site: SourceLine
    divisor: str
    agreed: bool
    summed_at: SourceLine = SourceLine()  # noqa: RUF009 - a frozen value


def divisions_before(sources: Mapping[str, str], backward: SourceLine) -> list[Division]:
    """The divisions between a loss and the line of its backward pass, the nearest to that first."""
    program = program_of(sources)
    found: dict[SourceLine, Division] = {}
    for value in _before(program, sources, backward):
        divisor = _divisor(value)
        if divisor is not None:
            site = _line(program, value)
            found.setdefault(site, Division(site, ast.unparse(divisor), is_made_the_same(program, divisor)))
    return list(found.values())


def term_over_all(sources: Mapping[str, str], backward: SourceLine) -> Division | None:
    """The one count that terms of a loss are divided by, which a collective has summed over the ranks, and nothing divides by
    their number; None where there is none, there are several, or the loss is scaled by the number of ranks on its way."""
    program = program_of(sources)
    found: dict[str, Division] = {}
    for value in _before(program, sources, backward):
        if any(names_world(last_word(node)) for node in ast.walk(value)):
            return None
        divisor = _divisor(value)
        made = all_made_of(program, divisor) if divisor is not None else []
        summed = [
            call for one in made for call in collectives_behind(program, one) if _ADDS_UP.search(last_word(call.func))
        ]
        if divisor is None or not summed:
            continue
        scaled = (two for one in made for two in (one, *_scaled_in_place(program, one)))
        if not any(names_world(last_word(node)) for one in scaled for node in ast.walk(one)):
            word = ast.unparse(divisor)
            found.setdefault(word, Division(_line(program, value), word, True, _line(program, summed[0])))
    return next(iter(found.values())) if len(found) == 1 else None


def _scaled_in_place(program: UserProgram, value: ast.expr) -> Iterator[ast.expr]:
    """What the variables in an expression are divided or multiplied by where they lie: `count /= world`, `count.div_(world)`."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    for node in program.inside(program.scope_of(value)) if names else ():
        target: ast.expr
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div | ast.Mult):
            target, by = node.target, [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _IN_PLACE:
            target, by = node.func.value, node.args[:1]
        else:
            continue
        if isinstance(target, ast.Name) and target.id in names:
            yield from by


def _before(program: UserProgram, sources: Mapping[str, str], backward: SourceLine) -> Iterator[ast.AST]:
    """The loss of a backward pass, and what it is made of, the nearest first."""
    waiting: list[ast.AST] = [one for call in calls_at(sources, backward, "backward") for one in _goes_backward(call)]
    seen: set[ast.AST] = set()
    for value in waiting:
        if value not in seen and len(seen) < MOST:
            seen.add(value)
            yield value
            waiting += _made_of(program, value)


def _line(program: UserProgram, value: ast.AST) -> SourceLine:
    step = step_of(program, value)
    return SourceLine(step.path, step.line, step.function)


def dropped_division(sources: Mapping[str, str], site: SourceLine) -> SourceLine:
    """The one division in the function around a line whose result nobody uses: `flat.div(world)`. No line: there is none."""
    file = source_file(sources, site.path)
    around = file.function_at(site.line) if file is not None else None
    statements = (node for node in ast.walk(around) if isinstance(node, ast.Expr)) if around is not None else ()
    lines = [
        node.lineno
        for node in statements
        if isinstance(node.value, ast.Call)
        and last_word(node.value.func) in DIVIDES
        and not last_word(node.value.func).endswith("_")
        and not any(word.arg == "out" for word in node.value.keywords)
    ]
    name = around.name if isinstance(around, FunctionNode) else "<module>"
    return SourceLine(site.path, lines[0], name) if len(lines) == 1 else SourceLine()


def _goes_backward(call: ast.Call) -> list[ast.expr]:
    """The loss in `loss.backward()`, `scaler.scale(loss).backward()` and `accelerator.backward(loss)`."""
    if call.args:
        return call.args[:1]
    return [call.func.value] if isinstance(call.func, ast.Attribute) else []


def _divisor(value: ast.AST) -> ast.expr | None:
    if isinstance(value, ast.AugAssign) and isinstance(value.op, ast.Div):
        return value.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        return value.right
    if isinstance(value, ast.Call) and last_word(value.func) in DIVIDES and value.args:
        return value.args[0] if isinstance(value.func, ast.Attribute) and len(value.args) == 1 else value.args[-1]
    return None


def _made_of(program: UserProgram, value: ast.AST) -> Iterator[ast.AST]:
    """What a loss is made of, up to the function that is not the user's and computes it."""
    if isinstance(value, ast.BinOp):
        yield value.left
        if not isinstance(value.op, ast.Div):
            yield value.right
    elif isinstance(value, ast.AugAssign):
        yield from (value.target, *(() if isinstance(value.op, ast.Div) else (value.value,)))
    elif isinstance(value, ast.UnaryOp):
        yield value.operand
    elif isinstance(value, ast.IfExp):
        yield from (value.body, value.orelse)
    elif isinstance(value, ast.Tuple | ast.List):
        yield from value.elts
    elif isinstance(value, ast.Dict):
        yield from value.values  # also what is unpacked into it
    elif isinstance(value, ast.Subscript):
        yield value.value
    elif isinstance(value, ast.GeneratorExp | ast.ListComp):
        yield value.elt
    elif isinstance(value, ast.Name):
        scope = program.scope_of(value)
        stored = [one for one in program.stores(value.id, scope) if isinstance(one[0], ast.Assign | ast.AugAssign)]
        above = [one for one in stored if program.scope_of(one[0]) is not scope or lineno(one[0]) <= value.lineno]
        nearest = sorted(above, key=lambda one: -lineno(one[0]))
        yield from (made if isinstance(statement, ast.Assign) else statement for statement, made in nearest)
        yield from program.passed(scope, value.id)
    elif isinstance(value, ast.Call):
        targets = program.targets(value)
        if isinstance(value.func, ast.Name) and value.func.id == "sum":
            yield from value.args[:1]
        yield from (one for target in targets[:2] for one in program.returned(target))
        if not targets and last_word(value.func) in _AS_IT_IS | DIVIDES and isinstance(value.func, ast.Attribute):
            yield from (value.args[:1] if last_word(value.func) == "scale" else [value.func.value])
