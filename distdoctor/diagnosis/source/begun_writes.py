"""Where the user's source begins to write a file: by handing the work to a thread, or by opening a file by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from distdoctor.diagnosis.source.source_file import argument, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_THREADS = frozenset({"Thread", "Timer", "submit", "run_in_executor", "start_new_thread"})
_WRITES = frozenset({"write_text", "write_bytes"})
_REMOVES = frozenset({"rmtree", "unlink", "removedirs", "rmdir"})


def thread_begun(sources: Mapping[str, str], inside: SourceLine) -> SourceLine:
    """The one line that hands the function around a line to a thread; no line where there are several, or none."""
    program = program_of(sources)
    return _only(
        program, (call for call in _calls(program) if last_word(call.func) in _THREADS and _runs(program, call, inside))
    )


def file_opened(sources: Mapping[str, str], path: str) -> SourceLine:
    """The one line that opens a file of this name for writing, where the source spells the name out; no line else."""
    program = program_of(sources)
    name = PurePath(path).name
    return _only(program, (call for call in _calls(program) if _opens(call) and _spells(program, call, name)))


def sorted_before_removed(sources: Mapping[str, str]) -> SourceLine:
    """The one line that sorts without a key in a function that removes files or folders; the one line that removes them where
    nothing is sorted; no line where there are several."""
    program = program_of(sources)
    removing = [one for one in _calls(program) if last_word(one.func) in _REMOVES or _is_os_remove(one)]
    scopes = {program.scope_of(one) for one in removing}
    sorts = [
        one for one in _calls(program) if last_word(one.func) in ("sorted", "sort") and program.scope_of(one) in scopes
    ]
    plain = [one for one in sorts if not any(word.arg == "key" for word in one.keywords)]
    return _only(program, plain or [one for one in removing if not sorts])


def _is_os_remove(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "remove" and last_word(call.func.value) == "os"


def _calls(program: UserProgram) -> Iterator[ast.Call]:
    return (node for file in program.files for node in file.nodes(ast.Call))


def _only(program: UserProgram, calls: Iterable[ast.Call]) -> SourceLine:
    found = list(calls)
    scope = program.scope_of(found[0]) if len(found) == 1 else None
    return scope.line(found[0]) if scope is not None else SourceLine()


def _runs(program: UserProgram, call: ast.Call, inside: SourceLine) -> bool:
    given = (*call.args, *(word.value for word in call.keywords))
    scopes = [scope for one in given for scope in program.functions.get(last_word(one), ())]
    return any(scope.path == inside.path and scope.file.function_at(inside.line) is scope.node for scope in scopes)


def _opens(call: ast.Call) -> bool:
    if last_word(call.func) in _WRITES:
        return True
    place = 1 if isinstance(call.func, ast.Name) else 0  # `open(path, "w")`, `path.open("w")`
    mode = argument(call, place, "mode") if last_word(call.func) == "open" else None
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and mode.value[:1] in ("w", "a", "x")


def _spells(program: UserProgram, call: ast.Call, name: str) -> bool:
    """Whether the path that is opened ends in this name, by itself or in what its variable was given."""
    path = call.args[0] if isinstance(call.func, ast.Name) and call.args else getattr(call.func, "value", call)
    values: list[ast.AST] = [path]
    if isinstance(path, ast.Name):
        values += [value for _, value in program.stores(path.id, program.scope_of(path))]
    texts = (node.value for value in values for node in ast.walk(value) if isinstance(node, ast.Constant))
    return any(isinstance(text, str) and PurePath(text).name == name for text in texts)
