"""What decides, in the body that it stands in, whether a node is reached: conditions, loops and their exits, handlers, tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from distdoctor.diagnosis.source.rank_local import LEAVING, deciding_tests, is_lazy_log, leaves, raising_tests
from distdoctor.diagnosis.source.source_file import dotted, last_word
from distdoctor.diagnosis.source.user_program import UserProgram
from distdoctor.diagnosis.source.ways import way_to


@dataclass(frozen=True, eq=False)
class DecidingTest:
    """A candidate: the expression that decides, what it belongs to, and whether the line is reached where it is false."""

    value: ast.AST
    holder: ast.AST
    negated: bool = False
    case: ast.AST | None = None  # the one of a `match`, or of a table of functions, that leads to the line

    @property
    def is_loop(self) -> bool:
        """Whether it is what a loop goes through, and so no question."""
        return isinstance(self.holder, ast.For | ast.AsyncFor | ast.comprehension) and self.value is self.holder.iter

    @property
    def key(self) -> tuple[int, bool, int]:
        return id(self.value), self.negated, id(self.case)


def tests_around(program: UserProgram, node: ast.AST) -> Iterator[DecidingTest]:
    """Everything that decides, in its own body, whether a node is reached, the nearest first."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(program.targets(node)) > 1:
        loops = (n for p, _ in program.above(node) if isinstance(p, ast.For) for n in ast.walk(p.target))
        if getattr(node.func.value, "id", "") not in {getattr(one, "id", None) for one in loops}:
            yield DecidingTest(node.func.value, node)  # which of several objects it is
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
        yield DecidingTest(node.func.slice, node)  # which function of a table
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.IfExp):
        yield DecidingTest(node.func.test, node)
    elif is_lazy_log(node):
        yield DecidingTest(node, node)  # whether it formats what it is given
    for parent, child in program.above(node):
        yield from _of_holder(program, parent, child)
        yield from _passed_before(parent, child)


def _of_holder(program: UserProgram, parent: ast.AST, child: ast.AST) -> Iterator[DecidingTest]:
    if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
        orelse = parent.orelse if isinstance(parent.orelse, list) else [parent.orelse]
        yield DecidingTest(parent.test, parent, child in orelse)
    elif isinstance(parent, ast.While) and child in parent.body:
        yield DecidingTest(parent.test, parent)
        yield from _exits(program, parent)
    elif isinstance(parent, ast.For | ast.AsyncFor) and child in parent.body:
        yield from _exits(program, parent)
        yield DecidingTest(parent.iter, parent)
    elif isinstance(parent, ast.comprehension) and child in parent.ifs[1:]:
        yield DecidingTest(parent.ifs[0], parent)
    elif isinstance(parent, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for generator in parent.generators:
            if child is not generator:
                yield from (DecidingTest(test, generator) for test in generator.ifs)
                yield DecidingTest(generator.iter, generator)
    elif isinstance(parent, ast.BoolOp) and child is not parent.values[0]:
        before = parent.values[: parent.values.index(child)] if child in parent.values else []
        yield from (DecidingTest(test, parent, isinstance(parent.op, ast.Or)) for test in before)
    elif isinstance(parent, ast.ExceptHandler):
        yield DecidingTest(parent, parent)
    elif isinstance(parent, ast.Try) and child in parent.body:
        kinds = (
            (handler, ast.unparse(handler.type) if handler.type is not None else "") for handler in parent.handlers
        )
        yield from (
            DecidingTest(handler, parent) for handler, kind in kinds if "Interrupt" not in kind and "Exit" not in kind
        )
    elif isinstance(parent, ast.With | ast.AsyncWith) and child in parent.body:
        yield from (
            DecidingTest(item.context_expr, parent) for item in parent.items if _may_leave(program, item.context_expr)
        )
    elif isinstance(parent, ast.Match) and child is not parent.subject:
        yield DecidingTest(parent.subject, parent, case=child)


def _may_leave(program: UserProgram, manager: ast.expr) -> bool:
    """Whether the statements of a `with` may be skipped: the manager is the user's own, or made to swallow exceptions."""
    own = any(program.targets(node) for node in ast.walk(manager)) or bool(program.classes_of(manager))
    return own or not isinstance(manager, ast.Call) or last_word(manager.func) == "suppress"


def tests_of_hooks(program: UserProgram, nodes: Iterable[ast.AST]) -> list[DecidingTest]:
    """Where a line leaves the loop to a framework: the tests in the hooks that it calls back by which these steer it.

    A hook is an `on_...` method of the user's; it steers by setting something of what it is given, or of its trainer.
    """
    called = (target for node in nodes for one in ast.walk(node) for target in program.targets(one))
    if any(target.name != "__init__" for target in called):
        return []
    found: list[DecidingTest] = []
    for name, scopes in program.functions.items():
        for scope in scopes if name.startswith("on_") else ():
            for node in program.inside(scope):
                if scope.of_class and isinstance(node, ast.Assign) and any(map(_is_of_framework, node.targets)):
                    found += [DecidingTest(test, program.parents[test]) for test in deciding_tests(program, node)]
    return found


def tests_that_stop(program: UserProgram) -> list[DecidingTest]:
    """Where a loop is a framework's: the tests under which the user's code has it stopped, `trainer.should_stop = True` or
    `engine.terminate()`, wherever that stands, and those under which its function is called."""
    found: dict[ast.AST, None] = {}
    for scopes in program.functions.values():
        for scope in scopes:
            for node in program.inside(scope):
                way = way_to(program, scope.line(node)) if _stops_a_loop(program, node) else None
                leading = [one for nodes in way.nodes.values() for one in nodes] if way is not None else []
                found |= dict.fromkeys(test for one in leading for test in deciding_tests(program, one))
    return [DecidingTest(test, program.parents[test]) for test in found]


def tests_that_cut_the_graph(program: UserProgram) -> list[DecidingTest]:
    """The tests under which a function returns a tensor that nothing was computed from: what stands behind it in the forward pass
    has no backward then."""
    found: list[DecidingTest] = []
    for scopes in program.functions.values():
        for scope in scopes:
            for node in program.inside(scope) if not _is_of_function(scope.node) else ():
                if isinstance(node, ast.Return) and node.value is not None and _MADE_ANEW & _called_in(node.value):
                    found += [DecidingTest(test, program.parents[test]) for test in deciding_tests(program, node)]
    return found


def _is_of_function(node: ast.AST) -> bool:
    """Whether it is a pass of a torch.autograd.Function, which are static methods; a module's forward is none."""
    decorators = getattr(node, "decorator_list", ())
    return getattr(node, "name", "") in ("forward", "backward") and "staticmethod" in map(last_word, decorators)


_MADE_ANEW = frozenset({"detach", "zeros", "empty", "zeros_like", "empty_like", "new_zeros", "new_empty"})


def _called_in(value: ast.expr) -> set[str]:
    return {last_word(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)}


_STOP = re.compile(r"stop|terminate", re.IGNORECASE)
_LOOPS = re.compile(r"trainer|engine|runner|control|state|loop|fabric", re.IGNORECASE)  # names of what runs a loop


def _stops_a_loop(program: UserProgram, node: ast.AST) -> bool:
    """`trainer.should_stop = True`, `control.should_training_stop = True`, `engine.terminate()`, `state.stop_training()`."""
    if isinstance(node, ast.Assign):
        told = [one for one in node.targets if isinstance(one, ast.Attribute)]
        if isinstance(node.value, ast.Constant) and not node.value.value:
            return False
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not program.targets(node):
        told = [node.func]
    else:
        return False
    return any(_STOP.search(one.attr) and _LOOPS.search(last_word(one.value)) for one in told)


def _is_of_framework(target: ast.AST) -> bool:
    """Whether an assignment goes to an attribute of something else than the hook's own object, or to its trainer's."""
    parts = dotted(target).split(".") if isinstance(target, ast.Attribute) else []
    return len(parts) == 2 + (parts[:1] == ["self"]) and (parts[0] != "self" or parts[1] == "trainer")


def _exits(program: UserProgram, loop: ast.For | ast.AsyncFor | ast.While) -> Iterator[DecidingTest]:
    """The conditions that end a loop from within."""
    for statement in _own_statements(loop.body):
        if isinstance(statement, ast.If) and leaves(statement.body, LEAVING[1:]):
            yield DecidingTest(statement.test, statement, True)
        yield from _raised_in(program, statement)


def is_caught(program: UserProgram, node: ast.AST) -> bool:
    """Whether a handler stands around a node, or around a call of the function that it is in."""
    waiting: list[ast.AST] = [node]
    known = set(waiting)
    for one in waiting:
        for parent, child in program.above(one):
            if isinstance(parent, ast.Try) and parent.handlers and child in parent.body:
                return True
        above = [caller for caller in program.callers.get(program.scope_of(one), ()) if caller not in known]
        waiting += above
        known.update(above)
    return False


def _raised_in(program: UserProgram, statement: ast.stmt) -> Iterator[DecidingTest]:
    """The conditions under which a simple statement calls something that raises, when somebody further up catches it."""
    if hasattr(statement, "body") or not is_caught(program, statement):
        return
    for test in raising_tests(program, [statement]):
        yield DecidingTest(test, statement, True)
        for parent, child in program.above(statement):
            if isinstance(parent, ast.If) and child in parent.body:
                yield DecidingTest(parent.test, parent)


def _passed_before(parent: ast.AST, child: ast.AST) -> Iterator[DecidingTest]:
    """What stands before a statement in its block and may have left it: `if ...: continue`, a `try` whose handler returns."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if not isinstance(block, list) or child not in block:
            continue
        for statement in reversed(block[: block.index(child)]):
            for inner in (statement, *_own_statements(list(_blocks_of(statement)))):
                if isinstance(inner, ast.If) and leaves(inner.body):
                    yield DecidingTest(inner.test, inner, True)
                elif isinstance(inner, ast.Try):
                    yield from (DecidingTest(h, inner, True) for h in inner.handlers if leaves(h.body))


def _blocks_of(statement: ast.AST) -> Iterator[ast.stmt]:
    if isinstance(statement, ast.If | ast.With | ast.AsyncWith | ast.Try):
        yield from statement.body
        yield from getattr(statement, "orelse", ())


def _own_statements(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of the `if`s, `with`s and `try`s in it, not those of loops and functions."""
    for statement in block:
        yield statement
        if isinstance(statement, ast.If | ast.With | ast.AsyncWith | ast.Try):
            handlers = [one for handler in getattr(statement, "handlers", ()) for one in handler.body]
            yield from _own_statements([*statement.body, *getattr(statement, "orelse", ()), *handlers])
