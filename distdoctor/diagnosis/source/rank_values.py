"""Where a value that a line passes on, or stores, becomes one rank's own: what it is made of, in the function of the line."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.decision import LEAST
from distdoctor.diagnosis.source.given_values import Line
from distdoctor.diagnosis.source.rank_local import LOCAL_WORDS, Hop, origin
from distdoctor.diagnosis.source.source_file import last_word, lineno
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.recording import SourceLine


def rank_local_way(sources: Mapping[str, str], site: SourceLine) -> list[Line]:
    """(line, what stands there) from the statement of a line back towards what most likely differs between ranks, as far as that
    is in the same file. [] where nothing in the source looks as if each rank answered for itself."""
    program = program_of(sources)
    file = next((one for one in program.files if one.path == site.path), None)
    statements = [node for node in file.nodes(ast.stmt) if _holds(node, site.line)] if file is not None else []
    if not statements:
        return []
    values = list(_values(max(statements, key=lineno)))
    values = [one for one in values if speaks_of_a_measure(one)] or values
    found = max((origin(program, one) for one in values), key=lambda one: one.weight, default=None)
    if found is None or found.weight < LEAST:
        return []
    here = (hop for hop in found.way[1:] if hop.path == site.path)
    return list({_line(hop): hop.text for hop in here if hop.line != site.line}.items())


def speaks_of_a_measure(value: ast.expr) -> bool:
    """Whether a value is called what people call what each rank measures, `latest_metric`: beside it an epoch is a counter."""
    return bool(LOCAL_WORDS.search(last_word(value) or getattr(getattr(value, "slice", None), "value", "") or ""))


def _line(hop: Hop) -> SourceLine:
    return SourceLine(hop.path, hop.line, hop.function)


def _values(statement: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(statement, ast.Assign | ast.AugAssign):
        yield statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from (*statement.value.args, *(word.value for word in statement.value.keywords))


def _holds(node: ast.stmt, line: int) -> bool:
    return lineno(node) <= line <= (node.end_lineno or 0)
