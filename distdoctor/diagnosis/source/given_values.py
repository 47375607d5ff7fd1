"""Where a value was given: from a call back through names, attributes and parameters to the line that writes it out."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from distdoctor.diagnosis.source.call_edits import calls_at, keyword_of, only_call
from distdoctor.diagnosis.source.deciding_tests import tests_around
from distdoctor.diagnosis.source.rank_local import step_of
from distdoctor.diagnosis.source.source_file import argument, keyword, last_word, lineno
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

_WHOSE_SHARE = frozenset(
    {"rank", "global_rank", "dp_rank", "data_parallel_rank", "process_index", "shard_id", "shard_index"}
)
STEPS = 4  # from the call to where the value is written
Line = tuple[SourceLine, str]  # and what stands there


def given_at(sources: Mapping[str, str], site: SourceLine, name: str) -> list[Line]:
    """(line, what stands there) of the argument of this name in the call at a line, and of what it is made of, the nearest first.

    [] where the line shows no such argument, or its value comes from several places.
    """
    program = program_of(sources)
    calls = [node for file in program.files if file.path == site.path for node in file.nodes(ast.Call)]
    here = (one for one in calls if lineno(one) <= site.line <= (one.end_lineno or 0))
    given = [word.value for one in here if (word := keyword_of(one, name)) is not None]
    return lines_of_way(program, way_back(program, given[0])) if len(given) == 1 else []


def made_of(sources: Mapping[str, str], value: ast.expr) -> list[Line]:
    """The same of an expression of these sources."""
    program = program_of(sources)
    return lines_of_way(program, way_back(program, value))


def deciding_test(sources: Mapping[str, str], site: SourceLine, name: str) -> list[Line]:
    """The nearest condition in its own body that decides whether the function of this name is called in a line, and what it is
    made of. [] where there is no such call, or no condition."""
    program = program_of(sources)
    for call in calls_at(sources, site, name)[-1:]:
        for test in tests_around(program, call):
            if isinstance(test.value, ast.expr) and not test.is_loop and test.value is not call:
                return lines_of_way(program, way_back(program, test.value))
    return []


def context_around(sources: Mapping[str, str], site: SourceLine, *names: str) -> list[Line]:
    """The innermost `with` around a line whose context one of the functions of these names makes, and the lines that make it,
    the nearest first. [] where there is none."""
    program = program_of(sources)
    holders = [node for file in program.files if file.path == site.path for node in file.nodes(ast.With, ast.AsyncWith)]
    around = [one for one in holders if lineno(one.body[0]) <= site.line <= (one.end_lineno or 0)]
    for context in (item.context_expr for one in reversed(around) for item in one.items):
        calls = [
            node for made in all_made_of(program, context) for node in ast.walk(made) if isinstance(node, ast.Call)
        ]
        makers = [one for one in calls if last_word(one.func) in names]
        if makers:
            return lines_of_way(program, [context, *makers])
    return []


def no_sync_around_backward(sources: Mapping[str, str], site: SourceLine) -> SourceLine:
    """The `with model.no_sync():` of the function around a line that holds a backward pass and no forward; no line where there is
    none."""
    for scope in program_of(sources).scopes.values():
        if scope.path != site.path or scope.node is not scope.file.function_at(site.line):
            continue
        for block in (node for node in ast.walk(scope.node) if isinstance(node, ast.With)):
            heads = [part for item in block.items for part in ast.walk(item.context_expr)]
            called = {last_word(n.func) for one in block.body for n in ast.walk(one) if isinstance(n, ast.Call)}
            if "no_sync" in map(last_word, heads) and "backward" in called and called <= {"backward", "scale", "item"}:
                return scope.line(block)
    return SourceLine()


def called_from(sources: Mapping[str, str], site: SourceLine) -> SourceLine:
    """The one line of the user's that calls the function which a line stands in; no line where there are several, or none."""
    program = program_of(sources)
    for scope in program.scopes.values():
        if scope.path == site.path and scope.name and scope.node is scope.file.function_at(site.line):
            calls = [node for node in program.callers.get(scope, ()) if isinstance(node, ast.Call)]
            if len(calls) == 1:
                where = program.scope_of(calls[0])
                return where.line(calls[0])
    return SourceLine()


def stored_before(sources: Mapping[str, str], site: SourceLine, method: str) -> list[Line]:
    """What the variable was given whose `method` is called on a line, in the order of the source: `scheduler = cosine(...)`,
    `_, scheduler = prepare(model, scheduler)` of `scheduler.step()`. [] where it is no variable, or there are several calls."""
    call = only_call(sources, site, method)
    if call is None or not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return []
    program = program_of(sources)
    values = [value for _, value in program.stores(call.func.value.id, program.scope_of(call))]
    return lines_of_way(program, values)


def given_to_sampler(sources: Mapping[str, str], loader: SourceLine, name: str) -> list[Line]:
    """The same of an argument of the sampler, where the loader made at a line is given one; [] where the source does not show
    how that was made."""
    program = program_of(sources)
    for call in calls_at(sources, loader, "DataLoader"):
        given = keyword(call, "sampler") or keyword(call, "batch_sampler")
        made = maker_of(program, given) if given is not None else None
        value = keyword(made, name) if made is not None else None
        if value is not None:
            return lines_of_way(program, way_back(program, value))
    return []


def rank_given_to_sampler(sources: Mapping[str, str], loader: SourceLine) -> tuple[str, list[Line]]:
    """The parameter by which a sampler class of the user's is told whose share it deals out, and the same of what the loader made
    at a line gives it. ("", []) where there is none, or the source does not show it."""
    program = program_of(sources)
    for call in calls_at(sources, loader, "DataLoader"):
        given = keyword(call, "batch_sampler") or keyword(call, "sampler")
        made = maker_of(program, given) if given is not None else None
        for init in program.methods({last_word(made.func)}, "__init__") if made is not None else ():
            for place, name in enumerate(init.parameters[1:]):
                value = argument(made, place, name) if made is not None and name in _WHOSE_SHARE else None
                if value is not None:
                    return name, lines_of_way(program, way_back(program, value))
    return "", []


def sampler_made(sources: Mapping[str, str], loader: SourceLine, *, shuffles: bool | None = None) -> SourceLine:
    """Where the sampler is made that a loader made at a line is given; no line where there is none, or there are several.
    `shuffles`: of several the one that says it does, or does not."""
    program = program_of(sources)
    given = [
        one
        for call in calls_at(sources, loader, "DataLoader")
        for name in ("sampler", "batch_sampler")
        if (one := keyword(call, name)) is not None
    ]
    made = (one for value in given for one in all_made_of(program, value) if isinstance(one, ast.Call))
    samplers = [one for one in made if last_word(one.func).endswith("Sampler") and _makes(program, one)]
    if len(samplers) > 1 and shuffles is not None:
        samplers = [one for one in samplers if getattr(keyword(one, "shuffle"), "value", True) is shuffles]
    return program.scope_of(samplers[0]).line(samplers[0]) if len(samplers) == 1 else SourceLine()


def way_back(program: UserProgram, value: ast.expr) -> list[ast.expr]:
    """A value, and what it was made of, one step after the other, as far as each comes from one place only."""
    way: list[ast.expr] = []
    waiting: ast.expr | None = value
    while waiting is not None and waiting not in way and len(way) < STEPS:
        way.append(waiting)
        made = _made_of(program, waiting)
        waiting = made[0] if len(made) == 1 else None
    return way


def all_made_of(program: UserProgram, value: ast.expr, *, through_objects: bool = False) -> list[ast.expr]:
    """A value, and all that it was made of, the nearest first. `through_objects`: of `table.rows` also what `table` is."""
    found, last = [value], [value]
    for _ in range(STEPS):
        made = [one for step in last for one in _made_of(program, step)]
        made += [one for step in last if isinstance(step, ast.IfExp) for one in (step.body, step.orelse)]
        if through_objects:
            objects = [one.value for step in last for one in _named_in(step) if isinstance(one, ast.Attribute)]
            made += [one for name in objects if isinstance(name, ast.Name) for one in stored(program, name)]
        last = [one for one in dict.fromkeys(made) if one not in found]
        found += last
    return found


def maker_of(program: UserProgram, value: ast.expr) -> ast.Call | None:
    """The call that makes an object, seen through names and through functions of the user's that return it."""
    return next((one for one in way_back(program, value) if isinstance(one, ast.Call) and _makes(program, one)), None)


def lines_of_way(program: UserProgram, way: Iterable[ast.AST]) -> list[Line]:
    """Each line once, with what stands there."""
    found: dict[SourceLine, str] = {}
    for step in (step_of(program, one) for one in way):
        found.setdefault(SourceLine(step.path, step.line, step.function), step.text)
    return list(found.items())


def _makes(program: UserProgram, call: ast.Call) -> bool:
    """Whether it is no function of the user's that is called, but a class, or what comes from elsewhere."""
    return last_word(call.func) in program.classes or not program.targets(call)


def _made_of(program: UserProgram, value: ast.expr) -> list[ast.expr]:
    if isinstance(value, ast.Call) and not _makes(program, value):
        return [one for target in program.targets(value) for one in program.returned(target)]
    return [one for node in _named_in(value) for one in stored(program, node)]


def _named_in(value: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """The variables and attributes that an expression is made of: of `self.env.rank` that one, and of a call what it is given."""
    waiting: list[ast.AST] = [value]
    for node in waiting:
        if isinstance(node, ast.Name | ast.Attribute):
            yield node
        elif isinstance(node, ast.Call):
            waiting += [*node.args, *(word.value for word in node.keywords)]
        else:
            waiting += ast.iter_child_nodes(node)


def stored(program: UserProgram, node: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """What a variable or an attribute was given, or what the callers pass for a parameter."""
    if isinstance(node, ast.Attribute):
        stored = program.kept_as(node) if program.classes_of(node.value) else []  # else of who knows what
    else:
        scope = program.holder(node.id, program.scope_of(node))
        passed = program.passed(scope, node.id)
        yield from passed
        stored = [] if passed else program.stores(node.id, scope)
    yield from (value for statement, value in stored if isinstance(statement, ast.Assign))
