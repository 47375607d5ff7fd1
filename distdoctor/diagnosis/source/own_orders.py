"""Where the user's source puts samples in an order of the process's own. Pure `ast`.

random.shuffle(rows)          # also numpy.random.permutation, torch.randperm: by the default generator
names = os.listdir(folder)    # in the order of the file system, unless it is sorted at once
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.given_values import all_made_of
from distdoctor.diagnosis.source.source_file import Scope, SourceFile, dotted, keyword, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_SHUFFLES = {
    "random.shuffle": "random",
    "random.sample": "random",
    "numpy.random.shuffle": "numpy.random",
    "numpy.random.permutation": "numpy.random",
    "torch.randperm": "torch",
}
_LISTINGS = frozenset({"os.listdir", "os.scandir", "glob.glob", "glob.iglob"})
_MAKING = ("__init__", "__post_init__")


@dataclass(frozen=True)
class OwnOrder:
    """`words` say what the line does. `generator`: whose default one shuffles there, "" where nothing is shuffled.
    `by_constructor`: it is part of making the data."""

    line: SourceLine
    words: str
    generator: str = ""
    by_constructor: bool = False


def shuffles_by_default(call: ast.Call, file: SourceFile) -> str:
    """Of which module the default generator is by which a call puts something in another order; "" where it does not."""
    first, dot, rest = dotted(call.func).partition(".")
    module = _SHUFFLES.get(f"{file.imports[first]}{dot}{rest}", "") if first in file.imports else ""
    return "" if module == "torch" and keyword(call, "generator") is not None else module


def seeds_default(call: ast.Call) -> bool:
    """Whether a call may seed a default generator: any that speaks of a seed, but for a generator that is made on the spot."""
    of_new = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call)
    return "seed" in last_word(call.func).lower() and not of_new


def own_order(sources: Mapping[str, str], dataset: str) -> OwnOrder | None:
    """The only shuffle by a default generator where data of the class `dataset` are made, else where what they are given is made;
    else the only listing there that is not sorted. None where there is none, or there are several."""
    program = program_of(sources)
    making = makers(program, dataset)
    bodies = making | _givers(program, dataset)
    calls = [call for file in program.files for call in file.nodes(ast.Call) if program.scope_of(call) in bodies]
    shuffles = [call for call in calls if shuffles_by_default(call, program.scope_of(call).file)]
    for found in ([call for call in shuffles if program.scope_of(call) in making], shuffles):
        if len(found) == 1:
            scope = program.scope_of(found[0])
            generator = shuffles_by_default(found[0], scope.file)
            words = f"shuffles by the default generator of {generator}: another order on each rank"
            return OwnOrder(scope.line(found[0]), words, generator, scope in making)
    listings = [call for call in calls if not shuffles and _lists(program, call)]
    if len(listings) != 1:
        return None
    return OwnOrder(program.scope_of(listings[0]).line(listings[0]), "lists files in no fixed order")


def _givers(program: UserProgram, dataset: str) -> set[Scope]:
    """The bodies in which such data are constructed, and those in which what they are given is made."""
    calls = [call for file in program.files for call in file.nodes(ast.Call) if last_word(call.func) == dataset]
    given = [value for call in calls for value in (*call.args, *(word.value for word in call.keywords))]
    made = [step for value in given for step in all_made_of(program, value)]
    return {program.scope_of(node) for node in (*calls, *made)}


def is_seeded(sources: Mapping[str, str]) -> bool:
    """Whether anything in the program seeds a default generator."""
    return any(seeds_default(call) for file in program_of(sources).files for call in file.nodes(ast.Call))


def makers(program: UserProgram, dataset: str) -> set[Scope]:
    """The constructor of a class, and what it calls of its own."""
    found = set(program.methods({dataset}, *_MAKING))
    waiting = [*found]
    while waiting:
        for one in _called_on_self(program, waiting.pop(), dataset):
            if one not in found:
                found.add(one)
                waiting.append(one)
    return found


def _called_on_self(program: UserProgram, scope: Scope, dataset: str) -> Iterator[Scope]:
    for call in scope.calls:
        if isinstance(call.func, ast.Attribute) and last_word(call.func.value) == "self":
            yield from program.methods({dataset}, call.func.attr)


def _lists(program: UserProgram, call: ast.Call) -> bool:
    file = program.scope_of(call).file
    first, dot, rest = dotted(call.func).partition(".")
    known = (
        f"{file.imports[first]}{dot}{rest}" in _LISTINGS if first in file.imports else last_word(call.func) == "iterdir"
    )
    return known and not any(
        isinstance(one, ast.Call) and last_word(one.func) == "sorted" for one, _ in program.above(call)
    )
