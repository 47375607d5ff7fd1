"""Where the user's source makes the module that holds a parameter: `self.final_norm = RMSNorm(dim)` for `final_norm.weight`."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.given_values import all_made_of
from distdoctor.diagnosis.source.rank_words import names_parallel_size, names_world
from distdoctor.diagnosis.source.source_file import last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

_Assignment = tuple[ast.AST, ast.expr]  # statement, value


def module_made(sources: Mapping[str, str], parameter: str) -> SourceLine:
    """The one line that gives this module its name in its parent, or that registers the parameter itself; no line where the
    source shows none, or several."""
    program = program_of(sources)
    words = _words_of(parameter)
    for end in (len(words) - 1, len(words)):
        found = [statement for statement, _ in _assignments(program, words[:end])]
        if found:
            scope = program.scope_of(found[0])
            return scope.line(found[0]) if len(found) == 1 else SourceLine()
    return SourceLine()


def is_sized_by_ranks(sources: Mapping[str, str], parameter: str) -> bool:
    """Whether what a module is made with, or how its class makes the parameter, goes back to a number of ranks: `HeadNorm(heads
    // tp_size)`."""
    program, words = program_of(sources), _words_of(parameter)
    made = [value for _, value in _assignments(program, words[:-1])]
    given = [one for value in made for call in ast.walk(value) if isinstance(call, ast.Call) for one in _given(call)]
    ways = [one for value in given for one in all_made_of(program, value)]
    for _, value in _assignments(program, words):
        kind = program.scope_of(value).of_class
        ways += [one for one in all_made_of(program, value) if kind and program.scope_of(one).of_class == kind]
    spoken = {last_word(node) for one in ways for node in ast.walk(one)}
    return any(names_world(word) or names_parallel_size(word) for word in spoken)


def _words_of(parameter: str) -> list[str]:
    return [word for word in parameter.split(".") if not word.isdigit()]


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _assignments(program: UserProgram, words: list[str]) -> list[_Assignment]:
    """What is assigned to `self.norm1` for `layers.norm1`, in the class of which `layers` holds instances where several classes
    have one."""
    stored = program.stores(words[-1], None) if words else []
    found: list[_Assignment] = [
        (node, value)
        for node, value in stored
        if isinstance(node, ast.Assign) and program.scope_of(node).name == "__init__"
    ]
    if len(found) < 2 or len(words) < 2:
        return found
    holders = {kind for _, value in program.stores(words[-2], None) for kind in program.classes_of(value)}
    return [(node, value) for node, value in found if program.scope_of(node).of_class in holders]
