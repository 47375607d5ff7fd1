"""Where a script that makes its batches by itself makes them, and with what it seeds the draws. Pure `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from distdoctor.diagnosis.source.given_values import Line, all_made_of, lines_of_way, way_back
from distdoctor.diagnosis.source.rank_words import names_some_rank, words_of
from distdoctor.diagnosis.source.source_file import FunctionNode, dotted, keyword, last_word, source_file
from distdoctor.diagnosis.source.stream_shares import SEEDING
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_SEEDING = SEEDING | {"set_seed"}
_WRAPPERS = frozenset({"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"})
MOST = 3  # lines of each kind


def shared_seeds(sources: Mapping[str, str]) -> list[Line]:
    """The lines that seed a generator with something in which no rank is named: those that draw for everybody first."""
    program = program_of(sources)
    return lines_of_way(program, [call for call in _seeding(program) if not _by_rank(program, call)])[:MOST]


def seeds_by_rank(sources: Mapping[str, str]) -> list[Line]:
    """The lines that seed a generator with something in which a rank is named."""
    program = program_of(sources)
    return lines_of_way(program, [call for call in _seeding(program) if _by_rank(program, call)])[:MOST]


def _seeding(program: UserProgram) -> list[ast.Call]:
    calls = [
        call
        for file in program.files
        for call in file.nodes(ast.Call)
        if last_word(call.func) in _SEEDING or (last_word(call.func) == "reset" and keyword(call, "seed"))  # gymnasium
    ]
    given = sorted((call for call in calls if call.args or call.keywords), key=lambda call: not dotted(call.func))
    return [call for call in given if not program.targets(call)]


def batches_of_model(sources: Mapping[str, str]) -> list[Line]:
    """What a wrapped model is called with, and what that is made of, the nearest first; [] where the source does not show it."""
    program = program_of(sources)
    for call in _calls_of_models(program):
        way = way_back(program, call.args[0])
        lines = lines_of_way(program, (*way, *_taken_apart(program, way[-1])))
        return lines[1:] or lines
    return []


def _taken_apart(program: UserProgram, value: ast.expr) -> list[ast.expr]:
    """Of `x` what `x, y = batch()` takes it from, nearest above, in the same body."""
    if not isinstance(value, ast.Name):
        return []
    assigns = [one for one in program.scope_of(value).assigns if isinstance(one, ast.Assign)]
    found = [
        one.value
        for one in assigns
        for target in one.targets
        if isinstance(target, ast.Tuple) and any(last_word(part) == value.id for part in target.elts)
    ]
    return found[-1:]


def _by_rank(program: UserProgram, call: ast.Call) -> bool:
    values = (*call.args, *(word.value for word in call.keywords))
    made = (one for value in values for one in all_made_of(program, value))
    return any(names_some_rank(word) for one in made for word in words_of(one))


def _calls_of_models(program: UserProgram) -> Iterator[ast.Call]:
    """The calls of what a wrapper was stored as, `self.model(batch)`."""
    names = {
        last_word(target)
        for file in program.files
        for node in file.nodes(ast.Assign)
        if isinstance(node.value, ast.Call) and last_word(node.value.func) in _WRAPPERS
        for target in node.targets
    } - {""}
    for file in program.files:
        yield from (call for call in file.nodes(ast.Call) if last_word(call.func) in names and call.args)


def steps_beside(sources: Mapping[str, str], lines: Iterable[SourceLine]) -> list[tuple[SourceLine, str]]:
    """The statements by which a position goes on, in the functions of these lines: `self.pos += B * T`, each with its text."""
    found = dict[SourceLine, str]()
    for line in lines:
        file = source_file(sources, line.path)
        function = file.function_at(line.line) if file is not None else None
        for node in ast.walk(function) if isinstance(function, FunctionNode) else ():
            if (
                isinstance(node, ast.AugAssign)
                and isinstance(node.op, ast.Add)
                and isinstance(node.target, ast.Attribute)
            ):
                found[SourceLine(line.path, node.lineno, line.function)] = ast.unparse(node)[:60]
    return list(found.items())[:2]
