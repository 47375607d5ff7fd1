"""The condition that let ranks part: one went to this line, the others to that one, and in between some rank answered for itself.

Two lines are traced back to the body that leads to both. What decides between them there, and on the way down to each, are the
candidates; the one whose value is most telling of a single rank (its number, its files, its clock, its data) is named.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from distdoctor.diagnosis.source.deciding_tests import (
    DecidingTest,
    is_caught,
    tests_around,
    tests_of_hooks,
    tests_that_cut_the_graph,
    tests_that_stop,
)
from distdoctor.diagnosis.source.decision import LEAST, STEPS_SHOWN, Decision
from distdoctor.diagnosis.source.rank_guard import of_test
from distdoctor.diagnosis.source.rank_local import (
    Hop,
    Origin,
    is_made_the_same,
    leaves,
    origin,
    raising_tests,
    step_of,
    tests_of_decorator,
)
from distdoctor.diagnosis.source.replicated import is_replicated
from distdoctor.diagnosis.source.settled import is_settled
from distdoctor.diagnosis.source.source_file import lineno
from distdoctor.diagnosis.source.tests_between import tests_between, tests_on_the_way
from distdoctor.diagnosis.source.user_program import UserProgram, program_of, stores_variable
from distdoctor.diagnosis.source.ways import Way, way_to
from distdoctor.recording.recording import SourceLine

PER_CANDIDATE = 0.05  # of two that are as telling the one nearer to the lines is meant
LOOP, PER_LOOP = 3.2, 0.8  # at most, and less: how long a loop is says less than a question that somebody asks


def deciding_condition(
    sources: Mapping[str, str],
    one: SourceLine,
    other: SourceLine | None,
    ranks: Iterable[int] = (),
    others: Iterable[int] = (),
    *,
    been: tuple[bool, bool] = (False, False),
    callers: tuple[Sequence[SourceLine], Sequence[SourceLine]] = ((), ()),
    even: Container[tuple[str, int]] = (),
) -> Decision | None:
    """What most likely sent `ranks` to one line and `others` to the other; None when nothing in the source tells.

    `other` None: the ranks that missed the line `one` went nowhere, they have ended. `been`: whether those that are not in this
    line now have been there before, in `one` and in `other`. `callers`: the lines that called the functions of these lines this
    time, the nearest first, as far as that is known. `even`: (path, line) of loops that had as many turns on all ranks.
    """
    program = program_of(sources)
    mine = way_to(program, one, callers[0])
    theirs = way_to(program, other, callers[1]) if other is not None else Way({}, {})
    if mine is None or theirs is None:
        return None
    tests = list(tests_between(program, mine, theirs))
    if one == other:
        tests = [*tests_of_hooks(program, next(iter(mine.nodes.values()))), *tests_on_the_way(program, mine)]
    tests = [test for test in tests if not (test.is_loop and _place(program, test) in even)]
    if other is not None:  # both went on
        tests = [test for test in tests if not _ends_the_rank(program, test)]
    for site, known in ((one, been[0]), (other, been[1])):
        passed = _passed_each_time(program, site) if known and site is not None else []
        tests = [test for test in tests if test.key not in passed or not is_settled(program, test.value)]
    stops, sides = tests_that_stop(program), ((mine, theirs), tuple(ranks), tuple(others))
    decision = _best(program, tests, *sides) or _best(program, stops, *sides)
    if "backward" in (one.function, other.function if other is not None else "") and (
        decision is None or decision.is_loop
    ):
        cut = _best(program, tests_that_cut_the_graph(program), *sides)
        decision = replace(cut, cuts_the_graph=True) if cut is not None else decision
    if decision is None:
        return None
    told = {(step.path, step.line) for step in (step_of(program, test.value) for test in stops)}
    return replace(decision, stops_a_framework=(decision.site.path, decision.site.line) in told)


def _place(program: UserProgram, test: DecidingTest) -> tuple[str, int]:
    return program.scope_of(test.holder).path, lineno(test.holder)


def awaited_condition(sources: Mapping[str, str], site: SourceLine) -> Decision | None:
    """What the innermost `while` around a line waits for, with what makes it this rank's own: `while not path.exists()`."""
    program = program_of(sources)
    way = way_to(program, site)
    if way is None:
        return None
    (node,) = next(iter(way.nodes.values()))[:1]
    tests = (one for one in tests_around(program, node) if isinstance(one.holder, ast.While))
    test = next((one for one in tests if one.value is getattr(one.holder, "test", None)), None)
    if test is None:
        return None
    found = origin(program, test.value)
    return Decision.of(_step(program, test), found.way, found.also) if found.weight >= LEAST else None


def deciding_count(
    sources: Mapping[str, str], line: SourceLine, beyond: SourceLine, callers: Sequence[SourceLine] = ()
) -> Decision | None:
    """What decides how often a line is run before its rank comes to another: what the loop around the one goes through, and where
    that is worked out. None where no loop holds the one without the other. `callers`: what called the function of the line, as
    far as that is known."""
    program = program_of(sources)
    way = way_to(program, line, callers)
    if way is None:
        return None
    for scope in sorted(way.nodes, key=way.depth.__getitem__):
        loops = [test for node in way.nodes[scope] for test in tests_around(program, node) if _goes_round(test)][
            :_LOOPS
        ]
        if any(_holds(test.holder, beyond) for test in loops if line.path == beyond.path):
            return None
        if loops:
            found = [origin(program, one.value, is_test=not one.is_loop, counted=one.is_loop) for one in loops]
            at = max(range(len(loops)), key=lambda number: found[number].weight)
            telling = found[at].way if found[at].weight >= LEAST else ()
            return Decision.of(
                _step(program, loops[at]), telling or _worked_out(program, loops[at].value), found[at].also
            )
    return None


_LOOPS = 4  # of one function that are looked at


def _goes_round(test: DecidingTest) -> bool:
    """Whether it is what decides how often a loop runs."""
    loop = test.holder
    return isinstance(loop, ast.For | ast.AsyncFor | ast.While) and test.value is getattr(
        loop, "iter", getattr(loop, "test", 0)
    )


def condition_beside(sources: Mapping[str, str], site: SourceLine) -> Decision | None:
    """The question in a loop that leads to a line whose answer is the most telling of a single rank, whatever it decides there;
    None where no answer is."""
    program = program_of(sources)
    way = way_to(program, site)
    nodes = [node for nodes in way.nodes.values() for node in nodes] if way is not None else []
    above = [parent for node in nodes for parent, _ in program.above(node)]
    loops = [one for one in above if isinstance(one, ast.For | ast.AsyncFor | ast.While)]
    holders = dict.fromkeys(node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.If | ast.While))
    asked = [(origin(program, holder.test, is_test=True), DecidingTest(holder.test, holder)) for holder in holders]
    found, test = max(asked, key=lambda one: one[0].weight, default=(None, None))
    if found is None or test is None or found.weight < LEAST:
        return None
    return Decision.of(_step(program, test), with_answer(program, found.way, test.value), found.also)


def _holds(loop: ast.AST, line: SourceLine) -> bool:
    return lineno(loop) <= line.line <= (getattr(loop, "end_lineno", 0) or lineno(loop))


def _worked_out(program: UserProgram, value: ast.AST) -> tuple[Hop, ...]:
    """The expression, what was assigned to the variables in it, and what the functions return that are called there."""
    found, waiting = [step_of(program, value)], deque[ast.AST]([value])
    while waiting and len(found) <= STEPS_SHOWN:
        made: list[ast.expr] = []
        for node in ast.walk(waiting.popleft()):
            if isinstance(node, ast.Name):
                stores = program.stores(node.id, program.scope_of(node))
                made += [one for statement, one in stores if stores_variable(statement, node.id)]
            elif isinstance(node, ast.Call):
                made += [one for target in program.targets(node) for one in program.returned(target)]
        found += [step_of(program, one) for one in made]
        waiting += made
    return tuple(found)


def _passed_each_time(program: UserProgram, site: SourceLine) -> list[tuple[int, bool, int]]:
    """The tests that stand before a line in its own body: whoever comes to it has passed them, from wherever it is called."""
    way = way_to(program, site)
    (node,) = next(iter(way.nodes.values()))[:1] if way is not None else (None,)
    return [test.key for test in tests_around(program, node)] if node is not None else []


def _best(
    program: UserProgram,
    tests: list[DecidingTest],
    ways: tuple[Way, Way],
    ranks: tuple[int, ...],
    others: tuple[int, ...],
) -> Decision | None:
    best: tuple[float, DecidingTest, Origin] | None = None
    for number, test in enumerate(tests):
        if not _may_separate(test, ranks, others):
            continue
        found = origin(program, test.value, is_test=not test.is_loop, counted=test.is_loop)
        weight = (min(found.weight, LOOP) - PER_LOOP if test.is_loop else found.weight) - PER_CANDIDATE * number
        if weight >= LEAST and (best is None or weight > best[0]):
            best = weight, test, found
    questions = [test for test in tests if not test.is_loop and _may_separate(test, ranks, others)]
    questions = [
        test for test in questions if _is_the_users(program, test) and not is_made_the_same(program, test.value)
    ]
    loops = [test for test in tests if test.is_loop and not _is_spelled_out(program, test.value)]
    # Everybody answers a question about counters and options alike: rather a loop went on for longer on some.
    left = (
        [test for test in questions if not is_replicated(program, test.value)]
        or [test for test in loops if questions and not is_replicated(program, test.value)]
        or questions
        or loops
    )
    if best is None and len(left) == 1:
        found = origin(program, left[0].value, is_test=not left[0].is_loop, counted=left[0].is_loop)
        best = 0.0, left[0], found  # nothing else can have decided
    if best is None:
        return None
    found = best[2]
    decision = Decision.of(_step(program, best[1]), with_answer(program, found.way, best[1].value), found.also)
    return replace(decision, call=_call_under(program, best[1], ways), exit=_exit_under(program, best[1]))


def _is_the_users(program: UserProgram, test: DecidingTest) -> bool:
    """Whether it is a question: of a decorator, that one of the user's asks, and not `@torch.no_grad()`."""
    return not program.decorates(test.value) or bool(program.runs_of_decorator(test.value))


_BUILT_IN = frozenset({"range", "enumerate", "reversed", "zip", "list", "tuple"})


def _is_spelled_out(program: UserProgram, value: ast.AST) -> bool:
    """Whether the source itself says what a loop goes through, the same for everybody: `(1, 2, 3)`, `range(4)`."""
    return not any(
        isinstance(node, ast.Name | ast.Attribute) and not (isinstance(node, ast.Name) and node.id in _BUILT_IN)
        for node in ast.walk(value)
    )


def _exit_under(program: UserProgram, test: DecidingTest) -> tuple[SourceLine, str] | None:
    """The statement by which a test, or a handler, leads away from what follows it."""
    holder = test.value if isinstance(test.value, ast.ExceptHandler) else test.holder
    body = holder.body if isinstance(holder, ast.If | ast.ExceptHandler) else []
    if not test.negated or not leaves(body):
        return None
    step = step_of(program, body[-1])
    return SourceLine(step.path, step.line, step.function), step.text


def _ends_the_rank(program: UserProgram, test: DecidingTest) -> bool:
    """Whether a test leads away by raising what no handler above it catches: who took that way made no further call."""
    body = test.holder.body if isinstance(test.holder, ast.If) and test.negated else []
    if not body or not isinstance(body[-1], ast.Raise):
        return False
    return not is_caught(program, body[-1])


def _call_under(program: UserProgram, test: DecidingTest, ways: tuple[Way, Way]) -> SourceLine:
    """The call under a test that leads to one of the lines, where that stands in another function."""
    decorated = program.scopes.get(program.parents[test.value]) if program.decorates(test.value) else None
    scope = decorated or program.scope_of(test.value)
    for way in ways:
        for node in way.nodes.get(scope, ()) if way.depth.get(scope) else ():
            if decorated or any(parent is test.holder for parent, _ in program.above(node)):
                return scope.line(node)
    return SourceLine()


def with_answer(program: UserProgram, way: tuple[Hop, ...], test: ast.AST) -> tuple[Hop, ...]:
    """The way, and what the function returns that the test asks, when nothing further was found."""
    if len(way) > 1:
        return way
    if isinstance(test, ast.ExceptHandler):
        raising = raising_tests(program, getattr(program.parents[test], "body", ()))
        return (*way, *(step_of(program, one) for one in list(raising)[:1]))
    if isinstance(test, ast.Name):
        stores = program.stores(test.id, program.scope_of(test))
        made = [value for statement, value in stores if stores_variable(statement, test.id)]
        return (*(way or (step_of(program, test),)), step_of(program, made[0])) if len(made) == 1 else way
    if program.decorates(test):
        return (*way, *(step_of(program, one) for one in tests_of_decorator(program, test)[:1]))
    returned = [one for node in ast.walk(test) for target in program.targets(node) for one in program.returned(target)]
    return (*way, step_of(program, returned[0])) if len(returned) == 1 else way


def _step(program: UserProgram, test: DecidingTest) -> Hop:
    step = step_of(program, test.value)
    words = {ast.If: "if", ast.While: "while", ast.For: "for ... in", ast.AsyncFor: "for ... in"}
    word = words.get(type(test.holder), "")
    return Hop(step.path, step.line, step.function, f"{word} {step.text}".strip())


def _may_separate(test: DecidingTest, ranks: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether the test can have answered the two sides differently, as far as it names ranks."""
    if not isinstance(test.value, ast.expr) or _names_the_main_module(test.value):
        return not isinstance(test.value, ast.expr)
    if not ranks or not others:
        return True
    guard = of_test(test.value)
    answers = ({guard.lets_through(rank) for rank in ranks}, {guard.lets_through(rank) for rank in others})
    return None in answers[0] | answers[1] or answers[0] != answers[1]


def _names_the_main_module(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))
