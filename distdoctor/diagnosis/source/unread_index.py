"""Whether a dataset hands out samples without reading the index that it is asked for. Pure `ast`.

def __getitem__(self, index):
    index = random.randrange(len(self.rows))     # whatever the sampler says
    return self.rows[index]
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import Scope
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.source_line import SourceLine


def unread_index(sources: Mapping[str, str], dataset: str) -> SourceLine:
    """The line of the only `__getitem__` of a class of that name, where it does not read what it is given; else no line."""
    program = program_of(sources)
    found = [file.classes[dataset] for file in program.files if dataset in file.classes]
    method = found[0].get("__getitem__") if len(found) == 1 else None
    if method is None or len(method.parameters) != 2 or _reads(method, method.parameters[1]):
        return SourceLine()
    return method.line(method.node)


def _reads(method: Scope, name: str) -> bool:
    for statement in method.node.body:
        named = [one for one in ast.walk(statement) if isinstance(one, ast.Name) and one.id in (name, "locals")]
        stored = isinstance(statement, ast.Assign) and any(one in named for one in statement.targets)
        if stored and all(isinstance(one.ctx, ast.Store) for one in named):
            return False
        if named:
            return True
    return False
