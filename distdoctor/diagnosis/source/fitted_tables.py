"""Where the user's source fits a table, a vocabulary or a scale to the share of one rank. Pure `ast`.

mine = read(paths[rank::world_size])
encoder = Encoder().fit(mine)            # another table on each rank, unless what it learned goes through a collective
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.given_values import stored
from distdoctor.diagnosis.source.rank_local import COLLECTIVES
from distdoctor.diagnosis.source.source_file import last_word
from distdoctor.diagnosis.source.stream_shares import deals
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_FITS = re.compile(
    r"^(?:fit|partial_fit|fit_transform|fit_on_\w+|build_vocab\w*|train_from_iterator|adapt|from_corpus)$"
)
MOST = 64  # expressions looked at
_TRAINS = re.compile(r"trainer|runner|learner|engine", re.I)  # whose `fit` is the training


@dataclass(frozen=True)
class FittedTable:
    """`name`: what is fitted, by its variable. `dealt`: where the rank takes its share."""

    name: str
    fitted: SourceLine
    dealt: SourceLine


def fitted_tables(sources: Mapping[str, str]) -> list[FittedTable]:
    """All that are fitted to a share and of which no collective carries anything."""
    program = program_of(sources)
    calls = [call for file in program.files for call in file.nodes(ast.Call)]
    sent = {name for call in calls if COLLECTIVES.match(last_word(call.func)) for name in _names_in(call)}
    return [
        FittedTable(name, program.scope_of(call).line(call), dealt)
        for call in calls
        if _FITS.match(last_word(call.func)) and not _TRAINS.search(ast.unparse(call.func))
        for name in [_name_of(program, call)]
        if name not in sent and not _communicates(program, name, calls)
        for dealt in [_share_in(program, call)]
        if dealt
    ]


def _name_of(program: UserProgram, call: ast.Call) -> str:
    """The variable of what is fitted: that of the object, or that which the result is stored in."""
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(value, ast.Name | ast.Attribute):
        return last_word(value)
    parent = program.scope_of(call).file.parent.get(call)
    return last_word(parent.targets[0]) if isinstance(parent, ast.Assign) else last_word(call.func)


def _names_in(node: ast.AST) -> Iterator[str]:
    return (last_word(one) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute))


def _communicates(program: UserProgram, name: str, calls: list[ast.Call]) -> bool:
    """Whether a function of the user's that this object is asked for, or handed to, calls a collective."""
    mine = (call for call in calls if name in _names_in(call))
    scopes = (scope for call in mine for scope in program.targets(call))
    return any(
        COLLECTIVES.match(last_word(one.func))
        for scope in scopes
        for one in program.inside(scope)
        if isinstance(one, ast.Call)
    )


def _share_in(program: UserProgram, call: ast.Call) -> SourceLine:
    """Where what the call is given was cut to the rank's share; no line where it was not. A function that gives it is not looked
    into: others may call that for all of the data."""
    waiting: list[ast.expr] = call.args[:1]
    for value in waiting:
        for node in ast.walk(value):
            if deals(program, node):
                return program.scope_of(node).line(node)
            if isinstance(node, ast.Name) and len(waiting) < MOST:
                waiting += [one for one in stored(program, node) if one not in waiting]
    return SourceLine()
