"""The line of the user's source that puts something into a variable again and again: `total += loss`, `outputs.append(x)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.source.source_file import FunctionNode, Loop, Scope, SourceFile, last_word, source_file
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

DEEPEST = 3  # calls from a loop to the function that registers hooks
ADDS, PUTS, CARRIES = "adds to it", "puts into it", "carries it over"
_PUTTING = frozenset({"append", "appendleft", "add", "extend", "insert", "update", "setdefault", "push", "put"})
# What a module keeps hooks in, and the calls that put them there.
_REGISTERING = {
    "_forward_hooks": ("register_forward_hook",),
    "_forward_pre_hooks": ("register_forward_pre_hook",),
    "_backward_hooks": ("register_full_backward_hook", "register_backward_hook"),
    "_backward_pre_hooks": ("register_full_backward_pre_hook",),
}


@dataclass(frozen=True)
class Keeping:
    """A statement that keeps. `value` is what it keeps, `text` the whole line, `at` where in it the value begins; -1: elsewhere.

    Of a tuple, list or dict with one element that may have a graph, the value is that element.
    """

    site: SourceLine
    how: str
    value: str
    text: str
    at: int = -1
    last_line: int = 0  # of the statement
    error: str = ""  # the name of the exception that it keeps, with the variables of all functions that it came through


def keeps_hooks(label: str) -> bool:
    """Whether this is an attribute in which torch's modules keep hooks: `model.layer._forward_hooks`."""
    return label.rpartition(".")[2] in _REGISTERING


def hooks_registered_again(sources: Mapping[str, str]) -> list[SourceLine]:
    """The lines that register a hook of a module in a function that a loop calls, or a `with`; [] where no source does."""
    if not any("_hook(" in text for text in sources.values()):
        return []
    program, names = program_of(sources), {name for calls in _REGISTERING.values() for name in calls}
    registers = {
        scope: [one for one in scope.calls if last_word(one.func) in names] for scope in program.scopes.values()
    }
    again = (scope for scope, calls in registers.items() if calls and _runs_again(program, scope, DEEPEST))
    return [one.line(call) for one in again for call in registers[one]]


def _runs_again(program: UserProgram, scope: Scope, depth: int) -> bool:
    """Whether a function is called in the body of a loop, by itself or by who calls it."""
    for caller in program.callers.get(scope, ()):
        again = any(isinstance(parent, Loop) and child in parent.body for parent, child in program.above(caller))
        if again or (depth and _runs_again(program, program.scope_of(caller), depth - 1)):
            return True
    return False


def keeping_line(sources: Mapping[str, str], site: SourceLine, label: str) -> Keeping | None:
    """The first statement that keeps something in `label`, in the function of `site` or else anywhere in its file.

    None when the source is not there or shows no such statement.
    """
    file = source_file(sources, site.path)
    if file is None:
        return None
    name = label.rpartition(".")[2]
    bound_here = "." not in label and site.line > 0
    for scope in (*(_functions(file, site) if bound_here else ()), file.tree):
        for node, function in _statements(scope, ""):
            found = _keeps(node, name, attribute="." in label)
            if found is not None:
                how, value = found[0], _with_graph(found[1])
                line = file.text.splitlines()[node.lineno - 1]
                place = SourceLine(site.path, node.lineno, function or site.function)
                written = ast.get_source_segment(file.text, value) or ast.unparse(value)
                at = (
                    len(line.encode()[: value.col_offset].decode(errors="ignore"))
                    if value.lineno == node.lineno
                    else -1
                )
                return Keeping(
                    place, how, written, line, at, node.end_lineno or node.lineno, _error_in(file, node, value)
                )
    return None


def _error_in(file: SourceFile, statement: ast.stmt, value: ast.expr) -> str:
    """The name by which a handler around the statement knows its exception, where that itself is kept: no call makes another
    thing of it, as `str(error)` does."""
    calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
    kept, called = _names_in([value]), _names_in(calls)
    handlers = file.nodes(ast.ExceptHandler)
    around = (one for one in handlers if one.lineno <= statement.lineno <= (one.end_lineno or one.lineno))
    return next((one.name for one in around if one.name in kept - called), "") or ""


def _names_in(nodes: Sequence[ast.AST]) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def _functions(file: SourceFile, site: SourceLine) -> Sequence[ast.AST]:
    """The function that the site stands in, the innermost that has its name."""
    found = [
        node
        for node in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        if node.name == site.function and node.lineno <= site.line <= (node.end_lineno or node.lineno)
    ]
    return list(reversed(found))[:1]


def _statements(scope: ast.AST, function: str) -> Iterator[tuple[ast.stmt, str]]:
    """Every statement below, in order, with the function that it stands in."""
    if isinstance(scope, FunctionNode):
        function = scope.name
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt):
            yield child, function
        yield from _statements(child, function)


def _keeps(node: ast.stmt, name: str, *, attribute: bool) -> tuple[str, ast.expr] | None:
    def is_it(expression: ast.AST) -> bool:
        if attribute:
            return isinstance(expression, ast.Attribute) and expression.attr == name
        return isinstance(expression, ast.Name) and expression.id == name

    if attribute and name in _REGISTERING:
        return _registers(node, _REGISTERING[name])
    if isinstance(node, ast.AugAssign) and is_it(node.target):
        return ADDS, node.value
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript) and is_it(node.target.value):
        return ADDS, node.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        call = node.value
        if node.value.func.attr in _PUTTING and _is_or_in(node.value.func.value, is_it) and call.args:
            return PUTS, call.args[-1]
    if isinstance(node, ast.Assign):
        targets = [one for target in node.targets for one in _flat(target)]
        if any(isinstance(one, ast.Subscript) and is_it(one.value) for one in targets) and not _is_empty(node.value):
            return PUTS, node.value
        if (
            any(map(is_it, targets))
            and any(is_it(inner) for inner in ast.walk(node.value))
            and not _detached(node.value)
        ):
            grows = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add)
            other = node.value.right if isinstance(node.value, ast.BinOp) and is_it(node.value.left) else node.value
            return (ADDS, other) if grows else (CARRIES, node.value)
    return None


def _registers(node: ast.stmt, calls: tuple[str, ...]) -> tuple[str, ast.expr] | None:
    """`layer.register_forward_hook(hook)`, also where its handle is kept, as one of a list."""
    value = node.value if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return) else None
    for call in ast.walk(value) if value is not None else ():
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in calls
            and call.args
        ):
            return PUTS, call.args[0]
    return None


def _is_or_in(expression: ast.AST, is_it: object) -> bool:
    """The container itself, or one of its elements (`groups[key].append`)."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    return bool(is_it(expression))  # type: ignore[operator]


def _with_graph(value: ast.expr) -> ast.expr:
    """The one element that may have a graph behind it, or the value itself where that cannot be said."""
    elements = (
        value.values if isinstance(value, ast.Dict) else value.elts if isinstance(value, ast.Tuple | ast.List) else []
    )
    found = [one for one in elements if not _is_plain(one)]
    return _with_graph(found[0]) if len(found) == 1 else value


def _is_plain(value: ast.expr) -> bool:
    """A literal, a number, or something detached."""
    if isinstance(value, ast.Constant | ast.JoinedStr):
        return True
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in ("float", "int", "str", "len", "bool")
    return _detached(value)


def _is_empty(value: ast.expr) -> bool:
    """What only makes room for what is put there later: `[]`, `{}`, `deque(maxlen=8)`, `None`."""
    if isinstance(value, ast.Call):
        return not value.args and last_word(value.func) in ("list", "dict", "set", "deque", "defaultdict", "Counter")
    return (
        (isinstance(value, ast.List | ast.Tuple) and not value.elts)
        or (isinstance(value, ast.Dict) and not value.keys)
        or (isinstance(value, ast.Constant) and value.value is None)
    )


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [one for element in target.elts for one in _flat(element)]
    return [target]


def _detached(value: ast.expr) -> bool:
    """`h = h.detach()`, `h = tuple(t.detach() for t in h)`."""
    return any(
        isinstance(inner, ast.Attribute) and inner.attr in ("detach", "detach_", "item", "data")
        for inner in ast.walk(value)
    )
