"""Whether a program communicates in threads that it starts itself, as far as its source tells.

Such a thread may be about to issue its first call: while it loads or computes nothing on record tells that it is there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache

from distdoctor.diagnosis.source.rank_local import COLLECTIVES
from distdoctor.diagnosis.source.source_file import Scope, dotted, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of

_STARTS = frozenset({"Thread", "Timer", "submit", "run_in_executor", "start_new_thread", "to_thread", "partial"})
_CALLS = frozenset({"send", "isend", "irecv", "barrier", "monitored_barrier", "gather", "batch_isend_irecv"})
MOST = 200  # functions looked at


def may_communicate_in_threads(sources: Mapping[str, str]) -> bool:
    """Whether a function that is handed to a thread, or one that it calls, issues calls of torch.distributed."""
    if not any("hread" in text or "xecutor" in text for text in sources.values()):
        return False
    try:
        return _may(program_of(sources))
    except RecursionError:  # generated code
        return True


@lru_cache(maxsize=8)
def _may(program: UserProgram) -> bool:
    waiting = list(_run_by_threads(program))
    known = set(waiting)
    for scope in waiting:
        if len(known) > MOST:
            return True
        for node in program.inside(scope):
            if isinstance(node, ast.Call) and _communicates(node):
                return True
            inner = [one for one in program.targets(node) if one not in known]
            waiting += inner
            known.update(inner)
    return False


def _run_by_threads(program: UserProgram) -> Iterator[Scope]:
    threads = {name for name, bases in program.classes.items() if any("Thread" in last_word(one) for one in bases)}
    yield from program.methods(threads, "run")
    for node in program.parents:
        if isinstance(node, ast.Call) and last_word(node.func) in _STARTS:
            for given in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from program.functions.get(last_word(given), ())
                if isinstance(given, ast.Lambda):
                    yield from (one for inner in ast.walk(given.body) for one in program.targets(inner))


def _communicates(call: ast.Call) -> bool:
    word = last_word(call.func)
    return (
        word in _CALLS or bool(COLLECTIVES.match(word)) or dotted(call.func).endswith(("dcp.save", "checkpoint.save"))
    )
