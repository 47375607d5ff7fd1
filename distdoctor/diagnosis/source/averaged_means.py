"""Where the user's source averages over the ranks what is an average on each of them already. Pure `ast`.

report = torch.tensor([right / count, loss / count])    # of the samples of one rank
dist.all_reduce(report)
report /= dist.get_world_size()                         # each rank weighs the same, however many it has
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.given_values import all_made_of
from distdoctor.diagnosis.source.loss_divisions import DIVIDES
from distdoctor.diagnosis.source.source_file import Scope, dotted, keyword, last_word
from distdoctor.diagnosis.source.stream_shares import speaks_of_world
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_REDUCES = frozenset({"all_reduce", "reduce"})
_COUNT_ELEMENTS = frozenset({"sum", "numel", "count_nonzero", "nelement"})
_MEANS = frozenset({"mean", "average", "fmean", "nanmean"})


@dataclass(frozen=True)
class AveragedMean:
    """`reduced`: the collective. `quotient`: the average that each rank makes, as it stands there, and its line. `around`: the
    lines that what goes into it is made in. `of_elements`: what it is divided by was counted element by element."""

    reduced: SourceLine
    made: SourceLine
    quotient: str
    around: tuple[SourceLine, ...] = ()
    within: tuple[tuple[str, int, int], ...] = ()  # path, first and last line of the functions of those lines
    of_elements: bool = False

    def is_of_loop(self, loop: SourceLine) -> bool:
        """Whether what is averaged was counted in the function of this loop, in it or behind it."""
        return any(
            (one.path, one.function) == (loop.path, loop.function)
            and (one.line >= loop.line or (self.made.path, self.made.function) != (loop.path, loop.function))
            for one in self.around
        )

    def is_of(self, line: SourceLine) -> bool:
        """Whether what is averaged was made in the function that this line stands in (or its comprehension), no earlier."""
        here = [one for one in self.around if one.path == line.path and self._are_of_one_function(one, line)]
        return any(one.line >= line.line for one in [one for one in here if one != self.made] or here)

    def _are_of_one_function(self, one: SourceLine, line: SourceLine) -> bool:
        if line.function == "<module>":
            return one.function == line.function
        return any(
            path == line.path and all(first <= number <= last for number in (one.line, line.line))
            for path, first, last in self.within
        )


def averaged_means(sources: Mapping[str, str]) -> list[AveragedMean]:
    """All of them, in the order of the files."""
    program, found = program_of(sources), list[AveragedMean]()
    for call in (call for file in program.files for call in file.nodes(ast.Call)):
        scope = program.scope_of(call)
        if last_word(call.func) in _REDUCES and call.args and _averages(program, scope, call):
            quotient = _quotient(program, call.args[0])
            if quotient is not None:
                made = program.scope_of(quotient).line(quotient)
                parts = [part for one in _averaged(quotient) for part in all_made_of(program, one)]
                parts += _added_to(program, parts)
                scopes = [program.scope_of(part) for part in parts]
                around = tuple(dict.fromkeys(one.line(part) for one, part in zip(scopes, parts, strict=True)))
                within = tuple(
                    (one.path, one.node.lineno, one.node.end_lineno or one.node.lineno)
                    for one in dict.fromkeys(scopes)
                    if not isinstance(one.node, ast.Module)
                )
                of_elements = _counts_elements(program, quotient)
                found.append(AveragedMean(scope.line(call), made, ast.unparse(quotient), around, within, of_elements))
    return found


def _averages(program: UserProgram, scope: Scope, call: ast.Call) -> bool:
    """Whether the collective gives the mean over the ranks, or its result is divided by their number afterwards."""
    given = [*call.args[1:], *(word.value for word in call.keywords)]
    if any(last_word(one) == "AVG" or (isinstance(one, ast.Constant) and one.value == "mean") for one in given):
        return True
    name = dotted(call.args[0])
    for node in program.inside(scope) if name else ():
        if getattr(node, "lineno", 0) < call.lineno:
            continue
        value: ast.expr
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            value, by = node.target, node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            value, by = node.left, node.right
        elif isinstance(node, ast.Call) and last_word(node.func) in DIVIDES and node.args:
            value, by = node.func, node.args[0]
        else:
            continue
        if any(dotted(one) == name for one in ast.walk(value)) and speaks_of_world(by):
            return True
    return False


def _quotient(program: UserProgram, value: ast.expr) -> ast.expr | None:
    """The first average that goes into a value: a division by what each rank has counted, or a mean."""
    for made in all_made_of(program, value):
        for node in ast.walk(made):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_counted(node.right):
                return node
            if isinstance(node, ast.Call) and last_word(node.func) in _MEANS and keyword(node, "dim") is None:
                return node
    return None


def _added_to(program: UserProgram, parts: list[ast.expr]) -> list[ast.expr]:
    """What is added to the names in these, in the functions where they stand: `tokens += mask.sum()`."""
    found = []
    for part in parts:
        names = {dotted(one) for one in ast.walk(part)} - {""}
        nodes = program.inside(program.scope_of(part)) if names else ()
        found += [one.value for one in nodes if isinstance(one, ast.AugAssign) and dotted(one.target) in names]
    return found


def _counts_elements(program: UserProgram, quotient: ast.expr) -> bool:
    """Whether the divisor is made of `(labels != PAD).sum()` and the like, or adds them up, and is none of rows or batches."""
    if not isinstance(quotient, ast.BinOp):
        return False
    made = list(all_made_of(program, quotient.right))
    every = (*made, *_added_to(program, made))
    calls = (node for one in every for node in ast.walk(one) if isinstance(node, ast.Call))
    return any(last_word(node.func) in _COUNT_ELEMENTS for node in calls)


def _averaged(quotient: ast.expr) -> list[ast.expr]:
    """The average itself, and of `places.mean()` also what is averaged."""
    owner = quotient.func if isinstance(quotient, ast.Call) else None
    return [quotient, owner.value] if isinstance(owner, ast.Attribute) else [quotient]


def _is_counted(divisor: ast.expr) -> bool:
    names = [one for one in ast.walk(divisor) if isinstance(one, ast.Name | ast.Attribute)]
    return bool(names) and not speaks_of_world(divisor)
