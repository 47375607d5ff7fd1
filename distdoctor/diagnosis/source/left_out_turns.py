"""The condition under which a rank leaves out a turn of its loop: `if (labels == IGNORE).all(): continue`. Pure `ast`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from distdoctor.diagnosis.source.deciding import with_answer
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.rank_local import Hop, is_made_the_same, origin, step_of
from distdoctor.diagnosis.source.replicated import is_replicated
from distdoctor.diagnosis.source.source_file import source_file
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.recording import SourceLine


def left_out_turn(sources: Mapping[str, str], each: SourceLine, seldom: SourceLine) -> Decision | None:
    """What leads past a line that stands in each turn of a loop, into the next turn; only some turns come to `seldom`, in one
    loop with it. None where nothing leads past it, or nothing that ranks may answer each for itself."""
    file = source_file(sources, each.path)
    if file is None or each.path != seldom.path:
        return None
    loops = [
        loop
        for loop in file.nodes(ast.For, ast.While)
        if all(loop.body[0].lineno <= line.line <= (loop.body[-1].end_lineno or 0) for line in (each, seldom))
    ]
    loop = max(loops, key=lambda one: one.lineno, default=None)
    program = program_of(sources)
    found = [
        (origin(program, statement.test, is_test=True), statement)
        for statement in (loop.body if loop is not None else ())
        if isinstance(statement, ast.If) and (statement.end_lineno or 0) < each.line
        if isinstance(statement.body[-1], ast.Continue)
        if not is_replicated(program, statement.test) and not is_made_the_same(program, statement.test)
    ]
    if not found:
        return None
    way, told = max(found, key=lambda one: one[0].weight)
    step, leaves = step_of(program, told.test), step_of(program, told.body[-1])
    first = Hop(step.path, step.line, step.function, f"if {step.text}")
    decision = Decision.of(first, with_answer(program, way.way, told.test), way.also)
    return replace(decision, exit=(SourceLine(leaves.path, leaves.line, leaves.function), leaves.text))
