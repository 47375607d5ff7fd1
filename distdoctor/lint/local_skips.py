"""Collectives that a rank skips for a reason of its own that is no question about its number: an exception, a file it finds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import POSSIBLE, WARNING
from distdoctor.diagnosis.source.source_file import Scope, dotted, last_word, lineno, within
from distdoctor.lint.collectives import MAKES_GROUP, Issue, calls_in, issues
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rank_conditions import Condition, conditions, holds_on_every_rank, on_rank, only_ranks_of
from distdoctor.lint.rule import Sighting
from distdoctor.lint.training import backwards

_OF_ONE_RANK = ("OutOfMemoryError", "RuntimeError", "Exception", "BaseException")
_WRITES = ("save", "write", "dump", "build", "copy", "download", "to_", "open", "make")
_MOVES = ("rename", "replace", "move")
_ASKS_FOR_FILE = ("exists", "isfile", "is_file", "isdir", "is_dir")


def after_exception(scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    """`except OutOfMemoryError: continue` around a backward, and a collective behind it in the same turn."""
    around = [pair for end in backwards(scope) for pair in scope.file.enclosing(end)]
    for attempt in dict.fromkeys(o for o, i in around if isinstance(o, ast.Try) and any(i is one for one in o.body)):
        loop = next(iter(scope.file.loops_around(attempt)), None)
        behind = [one for one in _unconditional(scope, program) if _is_behind(one, attempt, loop, scope)]
        for handler in attempt.handlers if behind else ():
            leaving = _leaving(handler)
            if leaving is None or not _is_of_one_rank(handler) or _meets(handler, scope, program):
                continue
            if _only_without_ranks(leaving, handler, scope, program):
                continue
            issue = min(behind, key=lambda one: lineno(one.way[0][0]))
            caught = ast.unparse(handler.type) if handler.type is not None else "an exception"
            yield Sighting(
                node=leaving,
                scope=scope,
                title=f"a rank that catches {caught} here skips {issue.operation} in this turn",
                why=f"such an exception comes on one rank alone; the others wait for it in line {lineno(issue.way[0][0])}",
                remedy="call-on-every-rank",
                also=((issue.way[0][0], scope, f"issues {issue.operation}"), (handler, scope, "catches the exception")),
                severity=WARNING,
                evidence={"operation": issue.operation, "condition": caught},
            )


def beside_writer(scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    """`if not exists(path):` around a rank that writes path and a barrier: who asks late finds the file and skips the barrier."""
    told: set[ast.AST] = set()
    for issue in _unconditional(scope, program):
        call = issue.way[0][0]
        for one in conditions(call, scope):
            path = _path_asked_for(one.test)
            if not path or (not one.negated and not _is_negation(one.test)) or one.statement in told:
                continue
            if any(_writes(path, other, one.statement, call, scope, program) for other in scope.calls):
                told.add(one.statement)
                yield _skipped_by_finders(path, issue, one, scope)
    yield from _waiting_for_writer(scope, program)


def _waiting_for_writer(scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    """`if rank != 0 and not exists(path): barrier()`, then rank 0 writes path and calls its own barrier."""
    guarded = [
        (one, condition) for one in issues(scope, program) if (condition := on_rank(one.way[0][0], scope, program))
    ]
    for issue, waits in guarded:
        paths = [path for part in _all_of(waits.test) if _is_negation(part) and (path := _path_asked_for(part))]
        asks = waits.statement
        if not paths or waits.negated or not isinstance(asks, ast.If):
            continue
        for other, meets in guarded:
            call = other.way[0][0]
            alone = other.operation == issue.operation and not only_ranks_of(waits, meets, scope, program)
            if alone and any(
                _is_written(paths[0], one) and lineno(asks) < lineno(one) < lineno(call) for one in scope.calls
            ):
                yield _skipped_by_finders(paths[0], issue, waits, scope)
                break


def _all_of(test: ast.expr) -> list[ast.expr]:
    """What has to be true, all of it, for a condition to be."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _skipped_by_finders(path: str, issue: Issue, asked: Condition, scope: Scope) -> Sighting:
    return Sighting(
        node=issue.way[0][0],
        scope=scope,
        title=f"ranks that find {path} already written skip {issue.operation}",
        why="one rank writes it while others may not have asked yet: those find it, and the rest wait for them",
        change="decide once: rank 0 asks, writes and meets the others in a barrier that all of them reach",
        also=((asked.statement, scope, "asks for the file"),),
        severity=WARNING,
        confidence=POSSIBLE,
        evidence={"operation": issue.operation, "condition": asked.words},
    )


def _unconditional(scope: Scope, program: ParsedFiles) -> list[Issue]:
    """What a scope issues, and not under a condition on the rank: that is told as such."""
    found = [one for one in issues(scope, program) if one.operation not in MAKES_GROUP]
    return [one for one in found if on_rank(one.way[0][0], scope, program) is None]


def _is_behind(issue: Issue, attempt: ast.AST, loop: ast.AST | None, scope: Scope) -> bool:
    call = issue.way[0][0]
    return lineno(call) > (getattr(attempt, "end_lineno", 0) or 0) and (loop is None or within(loop, call, scope.file))


def _leaving(handler: ast.ExceptHandler) -> ast.stmt | None:
    """The statement with which a handler leaves what follows: its last one, also under `if "out of memory" in str(e)`."""
    blocks = [handler.body, *(one.body for one in handler.body if isinstance(one, ast.If))]
    return next((b[-1] for b in blocks if isinstance(b[-1], ast.Continue | ast.Return | ast.Break)), None)


def _is_of_one_rank(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(one is None or last_word(one) in _OF_ONE_RANK for one in kinds)


def _meets(handler: ast.ExceptHandler, scope: Scope, program: ParsedFiles) -> bool:
    """Whether the handler tells the other ranks, or ends the job."""
    calls = calls_in([handler], scope)
    ends = any(last_word(call.func) in ("exit", "_exit", "abort", "destroy_process_group") for call in calls)
    return ends or bool(issues(scope, program, calls))


def _only_without_ranks(leaving: ast.stmt, handler: ast.ExceptHandler, scope: Scope, program: ParsedFiles) -> bool:
    """Whether every rank of a job raises before it gets there: `if retries > 3 or RANK != -1: raise`."""
    guards = (
        one
        for one in handler.body
        if isinstance(one, ast.If) and lineno(one) < lineno(leaving) and isinstance(one.body[-1], ast.Raise)
    )
    return any(holds_on_every_rank(one.test, scope, program) for one in guards)


def _path_asked_for(test: ast.expr) -> str:
    """`cache` of `cache.exists()` and of `os.path.exists(cache)`; "" when the condition asks for more."""
    asked = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if not isinstance(asked, ast.Call) or last_word(asked.func) not in _ASKS_FOR_FILE:
        return ""
    given = asked.args[0] if asked.args else asked.func.value if isinstance(asked.func, ast.Attribute) else None
    return dotted(given)


def _is_negation(test: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _writes(path: str, call: ast.Call, asks: ast.AST, meets: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    """Whether a call between the question and the meeting is given the path, on some rank only."""
    if not lineno(asks) < lineno(call) < lineno(meets) or on_rank(call, scope, program) is None:
        return False
    return _is_written(path, call)


def _is_written(path: str, call: ast.Call) -> bool:
    """Whether a call is given a path as what it writes."""
    words = last_word(call.func)
    if words in _MOVES:  # to the last, from the one before or from the owner
        return bool(call.args) and dotted(call.args[-1]) == path
    if not any(part in words for part in _WRITES):
        return False
    copied = any(part in words for part in ("copy", "download"))  # the first is where it comes from
    given = [*call.args[int(copied) :], *(one.value for one in call.keywords if not _is_source(one.arg))]
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return any(dotted(one) == path for one in (*given, owner))


def _is_source(keyword: str | None) -> bool:
    """`repo_id=`, `src=`: from where, not to where."""
    return keyword is not None and any(part in keyword.lower() for part in ("repo", "url", "src", "source", "name"))
