"""Where the user's source divides a sum over the ranks by how much one of them has. Pure `ast`.

center = rows.sum(dim=0)
dist.all_reduce(center)           # over all ranks
center = center / len(rows)       # the rows of this one
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.loss_divisions import DIVIDES
from distdoctor.diagnosis.source.source_file import Scope, dotted, keyword, last_word
from distdoctor.diagnosis.source.stream_shares import speaks_of_world
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_PICK = frozenset(
    {"narrow", "select", "index_select", "masked_select", "take", "chunk", "split", "tensor_split", "unbind"}
)


@dataclass(frozen=True)
class LocalDivisor:
    """`reduced`: the all_reduce. `divided`: the division, by `divisor`, of the sum of `rows`, which this rank has."""

    reduced: SourceLine
    divided: SourceLine
    divisor: str
    rows: str


def local_divisors(sources: Mapping[str, str]) -> list[LocalDivisor]:
    """All of them, in the order of the files. None where a number of ranks is mentioned with the result, or anything else that is
    summed beside it by the same function."""
    if not any("all_reduce" in text for text in sources.values()):
        return []
    program = program_of(sources)
    calls = (call for file in program.files for call in file.nodes(ast.Call) if last_word(call.func) == "all_reduce")
    return [one for call in calls for one in _of_call(program, call)]


def _of_call(program: UserProgram, call: ast.Call) -> Iterator[LocalDivisor]:
    scope, name = program.scope_of(call), dotted(call.args[0]) if call.args else ""
    if not name or isinstance(scope.node, ast.Module) or _has_an_operation(call):
        return
    nodes = sorted((one for one in program.inside(scope) if hasattr(one, "lineno")), key=lambda one: one.lineno)
    rows = _summed(nodes, name, call)
    if not rows:
        return
    for node in nodes:
        if node.lineno > call.lineno and _mentions(node, name) and _scales_by_ranks(node):
            return
    for node in nodes:
        divided = _divided(node) if node.lineno > call.lineno else None
        if divided is None or not any(dotted(one) == name for one in ast.walk(divided[0])):
            continue
        mine = next((one for one in rows if _counts(program, scope, divided[1], one)), "")
        if mine:
            yield LocalDivisor(scope.line(call), scope.line(node), ast.unparse(divided[1]), mine)
        return  # what is divided afterwards is another number


def _has_an_operation(call: ast.Call) -> bool:
    given = [*call.args[1:], *(word.value for word in call.keywords if word.arg == "op")]
    return any(last_word(one) != "SUM" for one in given if isinstance(one, ast.Attribute) and last_word(one).isupper())


def _summed(nodes: list[ast.AST], name: str, call: ast.Call) -> list[str]:
    """The variables whose first dimension is summed up into `name` by the last statement before the call that sets it."""
    made: ast.expr | None = None
    for node in nodes:
        if (
            isinstance(node, ast.Assign)
            and node.lineno < call.lineno
            and any(dotted(one) == name for one in node.targets)
        ):
            made = node.value
    if not isinstance(made, ast.Call) or last_word(made.func) != "sum":
        return []
    of_torch = isinstance(made.func, ast.Attribute) and dotted(made.func.value) == "torch"
    what = made.args[0] if of_torch and made.args else made.func.value if isinstance(made.func, ast.Attribute) else None
    dims = [*made.args[1 if of_torch else 0 :][:1], *filter(None, [keyword(made, "dim"), keyword(made, "axis")])]
    if what is None or any(_first_is_kept(one) for one in dims):
        return []
    return list(dict.fromkeys(filter(None, (dotted(one) for one in _with_all_rows(what)))))


def _with_all_rows(node: ast.AST) -> Iterator[ast.AST]:
    """It and what is in it, without what some rows are picked from: `rows[rank::world]` has not as many as `rows`."""
    if isinstance(node, ast.Subscript):
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        if not (isinstance(first, ast.Slice) and first.lower is first.upper is first.step is None):
            return
    if isinstance(node, ast.Call) and last_word(node.func) in _PICK:
        return
    yield node
    for one in ast.iter_child_nodes(node):
        yield from _with_all_rows(one)


def _first_is_kept(dim: ast.expr) -> bool:
    numbers = dim.elts if isinstance(dim, ast.Tuple | ast.List) else [dim]
    return not any(isinstance(one, ast.Constant) and one.value == 0 for one in numbers)


def _mentions(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.stmt) and any(dotted(one) == name for one in ast.walk(node))


def _scales_by_ranks(node: ast.AST) -> bool:
    return not hasattr(node, "body") and any(
        isinstance(one, ast.expr) and speaks_of_world(one) for one in ast.walk(node)
    )


def _divided(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return node.target, node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return node.left, node.right
    if (
        isinstance(node, ast.Call)
        and last_word(node.func) in DIVIDES
        and isinstance(node.func, ast.Attribute)
        and node.args
    ):
        return node.func.value, node.args[0]
    return None


def _counts(program: UserProgram, scope: Scope, divisor: ast.expr, rows: str) -> bool:
    """Whether a divisor is the length of a variable, or a name that is set to it and to nothing else."""
    if isinstance(divisor, ast.Name):
        stores = [value for node, value in program.stores(divisor.id, scope) if not isinstance(node, ast.AugAssign)]
        return len(stores) == 1 and not isinstance(stores[0], ast.Name) and _counts(program, scope, stores[0], rows)
    if isinstance(divisor, ast.Call) and isinstance(divisor.func, ast.Name):
        return divisor.func.id == "len" and len(divisor.args) == 1 and dotted(divisor.args[0]) == rows
    if isinstance(divisor, ast.Subscript):
        return (
            _is_zero(divisor.slice)
            and isinstance(divisor.value, ast.Attribute)
            and _is_of(divisor.value, "shape", rows)
        )
    if isinstance(divisor, ast.Call) and isinstance(divisor.func, ast.Attribute):
        whole = _is_of(divisor.func, "numel", rows) and not divisor.args
        return whole or (_is_of(divisor.func, "size", rows) and len(divisor.args) == 1 and _is_zero(divisor.args[0]))
    return False


def _is_of(attribute: ast.Attribute, word: str, rows: str) -> bool:
    return attribute.attr == word and dotted(attribute.value) == rows


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
