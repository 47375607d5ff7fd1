"""Where the user's source makes learning-rate schedules: torch's classes and transformers' functions, by their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.given_values import Line, made_of, maker_of
from distdoctor.diagnosis.source.rank_values import speaks_of_a_measure
from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.source_line import SourceLine

# StepLR, ReduceLROnPlateau, CosineAnnealingWarmRestarts, get_linear_schedule_with_warmup.
_SCHEDULE = re.compile(r"LR$|LROnPlateau$|WarmRestarts$|[Ss]cheduler$|^get_\w+_schedule(_with_\w+)?$")

_OF_TENSORS = frozenset(
    {"item", "cpu", "detach", "float", "double", "mean", "sum", "numpy"}
)  # their value is their own


def schedule_names(sources: Mapping[str, str], path: str) -> list[str]:
    """The names, `plateau` or `self.warmup`, to which a file gives a schedule."""
    file = source_file(sources, path)
    found: list[str] = []
    for node in file.nodes(ast.Assign) if file is not None else ():
        called = ast.unparse(node.value.func).rpartition(".")[2] if isinstance(node.value, ast.Call) else ""
        if _SCHEDULE.search(called):
            found += [ast.unparse(one) for one in node.targets if isinstance(one, ast.Name | ast.Attribute)]
    return found


def metric_at(sources: Mapping[str, str], step: SourceLine) -> list[Line] | None:
    """(line, what stands there) of the value by which a ReduceLROnPlateau moves in a line, and of what it is made of, through
    functions of the user's that return it. None where no schedule of that kind moves there."""
    if "Plateau" not in sources.get(step.path, ""):
        return None
    for call in calls_at(sources, step, "step")[-1:]:
        given = [*call.args, *(word.value for word in call.keywords if word.arg == "metrics")]
        measured = [one for one in given if speaks_of_a_measure(one)]
        value = next(iter(measured or given), None)
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _OF_TENSORS:
            value = value.func.value
        if value is not None:
            return made_of(sources, value)
    return None


def schedule_made_after(sources: Mapping[str, str], load: SourceLine) -> SourceLine:
    """The one line below a load, in its function, that makes a schedule, itself or by a function of the user's; no line where
    there are several, or none."""
    file = source_file(sources, load.path)
    if file is None:
        return SourceLine()
    program, around = program_of(sources), file.function_at(load.line)
    below = (node for node in ast.walk(around) if isinstance(node, ast.Assign) and node.lineno > load.line)
    made = [(node.lineno, maker_of(program, node.value)) for node in below if isinstance(node.value, ast.Call)]
    lines = [line for line, call in made if call is not None and _SCHEDULE.search(last_word(call.func))]
    return SourceLine(load.path, lines[0], load.function) if len(lines) == 1 else SourceLine()
