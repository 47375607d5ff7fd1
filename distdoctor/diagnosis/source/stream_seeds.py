"""Where the user's source seeds or numbers a stream, with the number of the rank or of the worker. Pure `ast`.

rng = random.Random(42 + worker + self.rank)      # rank 0's worker 1 and rank 1's worker 0 get one seed
reader = self.rank + worker                       # and here one number
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from distdoctor.diagnosis.source.given_values import Line, lines_of_way, way_back
from distdoctor.diagnosis.source.rank_words import names_some_rank
from distdoctor.diagnosis.source.source_file import Scope, last_word
from distdoctor.diagnosis.source.stream_shares import SEEDING
from distdoctor.diagnosis.source.user_program import UserProgram, program_of

_OWN = frozenset(
    {"Random", "RandomState", "default_rng", "SeedSequence"}
)  # seeds of generators that are made with them


def stream_seed(sources: Mapping[str, str], dataset: str) -> list[Line]:
    """(line, what stands there) of the seed that is made of a rank's or worker's number, and of what that is made of: the only
    one in the class `dataset`, else the only one of all that is made of both. [] where there is none, or there are several."""
    program = program_of(sources)
    calls = [call for file in program.files for call in file.nodes(ast.Call) if last_word(call.func) in SEEDING]
    own = [call for call in calls if dataset in _classes_of(program, call)]
    found = [way for call in own if (way := _way_to(program, call, lambda words: _rank(words) or _worker(words)))]
    found = found or [
        way for call in calls if (way := _way_to(program, call, lambda words: _rank(words) and _worker(words)))
    ]
    return lines_of_way(program, found[0]) if len(found) == 1 else []


def worker_seed(sources: Mapping[str, str], dataset: str, *, own: bool = True) -> list[Line]:
    """The only line that makes the seeds in what is given as `worker_init_fn`, and what takes them; else the only line that seeds
    in the class `dataset`, also a generator of its `own`. Else []."""
    program = program_of(sources)
    calls = [call for file in program.files for call in file.nodes(ast.Call)]
    given = [word.value for call in calls for word in call.keywords if word.arg == "worker_init_fn"]
    run = {scope for value in given for scope in _run_by(program, value)}
    found = [call for call in calls if last_word(call.func) in SEEDING and program.scope_of(call) in run]
    made = [(_way_to(program, call, _worker) or [call])[-1] for call in found]
    kinds = SEEDING if own else SEEDING - _OWN
    of_class: list[ast.expr] = [
        call for call in calls if last_word(call.func) in kinds and dataset in _classes_of(program, call)
    ]
    made = made or of_class
    return lines_of_way(program, [*made, *found]) if len(lines_of_way(program, made)) == 1 else []


def _run_by(program: UserProgram, value: ast.expr) -> list[Scope]:
    """The functions that may run where a value is called: `seeded`, `partial(seeded, rank=rank)`, an object's `__call__`."""
    words = {last_word(node) for node in ast.walk(value) if isinstance(node, ast.Name | ast.Attribute)}
    named = [scope for word in words for scope in program.functions.get(word, ())]
    return [*named, *program.methods(program.classes_of(value), "__call__")]


def summed_numbers(sources: Mapping[str, str], dataset: str) -> list[Line]:
    """(line, what stands there) of the sum of a rank's and a worker's number in the class `dataset`, neither multiplied; [] where
    there is none, or there are several."""
    program = program_of(sources)
    sums = [node for file in program.files for node in file.nodes(ast.BinOp) if isinstance(node.op, ast.Add)]
    sums = [node for node in sums if dataset in _classes_of(program, node) and _adds_plain(node)]
    return lines_of_way(program, sums) if len(sums) == 1 else []


def _adds_plain(node: ast.BinOp) -> bool:
    sides = [one for one in (node.left, node.right) if isinstance(one, ast.Name | ast.Attribute)]
    words = [last_word(one) for one in sides]
    return len(words) == 2 and any(
        _rank({one}) and (_worker({other}) or other == "id") for one, other in (words, words[::-1])
    )


def _classes_of(program: UserProgram, call: ast.expr) -> tuple[str, str]:
    scope = program.scope_of(call)
    return scope.class_name, scope.of_class


def _way_to(program: UserProgram, call: ast.Call, named: Callable[[set[str]], bool]) -> list[ast.expr]:
    """The seed back to where the numbers are named in it; [] where they are not."""
    for value in (*call.args, *(word.value for word in call.keywords)):
        way = way_back(program, value)
        for steps, one in enumerate(way, 1):
            if named({last_word(node) for node in ast.walk(one)}):
                return way[:steps]
    return []


def _rank(words: set[str]) -> bool:
    return any(map(names_some_rank, words - {""}))


def _worker(words: set[str]) -> bool:
    return any("worker" in word.lower() for word in words)
