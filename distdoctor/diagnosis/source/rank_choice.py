"""The expression by which a value differs between ranks: `torch.float16 if rank == 1 else torch.float32`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from distdoctor.diagnosis.source.call_edits import node_replaced
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, Guard, is_about_rank, of_test, rank_word
from distdoctor.diagnosis.source.source_file import SourceFile, source_file
from distdoctor.recording.recording import SourceLine

STEPS_BACK = 3  # from the value of a call to the assignment that made it


def singled_out(
    sources: Mapping[str, str], site: SourceLine, ranks: Iterable[int], others: Iterable[int]
) -> Guard | None:
    """The condition by which the call in this line gets another value on `ranks` than on `others`, when it names one rank alone
    (`rank == 1`); None when there is none, or several."""
    ranks, others = tuple(ranks), tuple(others)
    found = {}
    file = source_file(sources, site.path)
    for guard in _choices(file, site.line) if file is not None else ():
        if all(guard.lets_through(rank) is True for rank in ranks) and all(
            guard.lets_through(r) is False for r in others
        ):
            found[guard.line, guard.test] = guard
    return next(iter(found.values())) if len(found) == 1 else None


def without_choice(
    sources: Mapping[str, str], site: SourceLine, choice: Guard, others: Iterable[int]
) -> tuple[Edit, ...]:
    """The edit that gives every rank the value of the `others`, in the place of `a if rank == 1 else b`; () where the choice is
    made by statements."""
    file = source_file(sources, site.path)
    found = [
        node
        for node in (file.nodes(ast.IfExp) if file is not None else ())
        if node.lineno <= choice.line <= (node.end_lineno or 0) and ast.unparse(node.test) == choice.test
    ]
    if file is None or len(found) != 1:
        return ()
    answers = {of_test(found[0].test).lets_through(rank) for rank in others}
    kept = found[0].body if answers == {True} else found[0].orelse if answers == {False} else None
    text = ast.get_source_segment(file.text, kept) if kept is not None else None
    return (node_replaced(site.path, found[0], text),) if text and not isinstance(kept, ast.Lambda) else ()


def _choices(file: SourceFile, line: int) -> Iterator[Guard]:
    """The conditions that name one rank, on which the statement of this line or a value that goes into it depends."""
    scope = file.function_at(line)
    statement = next((node for node in reversed(file.path_to(line)) if isinstance(node, ast.stmt)), None)
    if statement is None:
        return
    reached = {id(statement)}
    used = list(_parts(statement))
    for _ in range(STEPS_BACK):
        names = {node.id for part in used for node in ast.walk(part) if isinstance(node, ast.Name)}
        for block in ast.walk(scope):
            for one in _assignments(block, names):
                if id(one) not in reached and one.lineno <= line:
                    reached.add(id(one))
                    used.append(one.value)
                    yield from _named_by(block)
    for part in used:
        for node in ast.walk(part):
            if isinstance(node, ast.IfExp):
                yield from _named_by(node)


def _parts(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement that its own line holds: not its body."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr):
            yield child


def _assignments(block: ast.AST, names: set[str]) -> Iterator[ast.Assign]:
    """The assignments to one of these names that stand directly in a block."""
    for part in ("body", "orelse"):
        statements = getattr(block, part, None)
        for one in statements if isinstance(statements, list) else ():
            if isinstance(one, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in one.targets):
                yield one


def _named_by(node: ast.AST) -> Iterator[Guard]:
    """The test of a condition, when it compares the rank with one number: whoever it names is the odd one."""
    if not isinstance(node, ast.If | ast.IfExp) or not is_about_rank(node.test):
        return
    test = node.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.NotEq):
        negated = isinstance(test.ops[0], ast.NotEq)
        yield Guard(node.lineno, ast.unparse(test), ENCLOSES, negated, True, word=rank_word(test), _expression=test)
