"""The condition that let ranks part: one went to this line, the others to that one, and in between some rank answered for itself.

Two lines are traced back to the body that leads to both. What decides between them there, and on the way down to each, are the
candidates; the one whose value is most telling of a single rank (its number, its files, its clock, its data) is named.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from distdoctor.diagnosis.source.rank_guard import is_about_rank, of_test
from distdoctor.diagnosis.source.rank_local import (
    LEAVING,
    Hop,
    Origin,
    deciding_tests,
    is_lazy_log,
    is_made_the_same,
    leaves,
    origin,
    raising_tests,
    step_of,
    tests_of_decorator,
)
from distdoctor.diagnosis.source.rank_words import lets_one_in
from distdoctor.diagnosis.source.replicated import is_replicated
from distdoctor.diagnosis.source.settled import is_settled
from distdoctor.diagnosis.source.source_file import FunctionNode, Scope, SourceFile, dotted, last_word, lineno
from distdoctor.diagnosis.source.user_program import UserProgram
from distdoctor.recording.recording import SourceLine

DEEPEST = 8  # calls between the body that leads to both lines and one of them
LEAST = 1.0  # of weight, to be worth a word
PER_CANDIDATE = 0.05  # of two that are as telling the one nearer to the lines is meant
LOOP, PER_LOOP = 3.2, 0.8  # at most, and less: how long a loop is says less than a question that somebody asks
STEPS_SHOWN = 4
RANKS = 64  # of which one is named
ROOT, DTYPE, SHAPE, REDUCTION = "root", "dtype", "shape", "reduction"  # in what calls differ, as `alignment` says it
TAG, MEMBERS = "tag", "members"  # the same of messages, and of groups under construction


@dataclass(frozen=True)
class Decision:
    """`test` decides at `site`. `way`: the lines from there to the expression that differs between ranks, that one last."""

    site: SourceLine
    test: str
    way: tuple[tuple[SourceLine, str], ...] = ()
    call: SourceLine = field(default_factory=SourceLine)  # under the test, when it is what leads to one of the lines
    also: tuple[SourceLine, str] | None = None  # what may as well be the expression that differs
    exit: tuple[SourceLine, str] | None = None  # the statement under the test that leads away from one of the lines

    @property
    def decides_alone(self) -> bool:
        """Whether it is a question that all ranks can answer together, and not a loop or a value."""
        return self.test.startswith(("if ", "while "))

    @property
    def is_loop(self) -> bool:
        """Whether it is what a loop goes through: the ranks have different numbers of turns."""
        return self.test.startswith("for ")

    @property
    def question(self) -> str:
        """The test without the word before it."""
        return self.test.removeprefix("if ").removeprefix("while ")

    @property
    def comes_from_the_rank(self) -> bool:
        """Whether the test, or what its answer depends on, is a question about the rank."""
        texts = [text for _, text in (*self.way, *((self.also,) if self.also else ()))]
        return self.asks_for_the_rank or any(
            is_about_rank(node) for text in texts if (node := _parsed(text)) is not None
        )

    @property
    def rank_named(self) -> int | None:
        """The one rank that the test lets through, or keeps out; None when it asks for anything else."""
        expression = self._expression
        if expression is None or self.test.startswith("while "):
            return None
        if self._is_decorator and lets_one_in(expression):
            return 0
        guard = of_test(expression)
        answers = [guard.lets_through(rank) for rank in range(RANKS)]
        single = [answer for answer in (True, False) if answers.count(answer) == 1 and None not in answers]
        return answers.index(single[0]) if single else None

    @property
    def asks_for_the_rank(self) -> bool:
        """Whether the test, or a part of it, is a question about the rank."""
        test = self._expression
        if test is None:
            return False
        if self._is_decorator and lets_one_in(test):
            return True
        parts = (node for node in ast.walk(test) if isinstance(node, ast.Compare | ast.Name | ast.Attribute))
        return any(of_test(part).on_rank for part in parts)

    @property
    def _is_decorator(self) -> bool:
        return not self.decides_alone

    @property
    def _expression(self) -> ast.expr | None:
        found = _parsed(self.question)
        return found.body if isinstance(found, ast.Expression) else None

    @property
    def words(self) -> str:
        """`while not budget.exhausted()` (train.py:49), by `time.monotonic() - self.t0 > self.seconds` (train.py:19)."""
        here = f"`{self.test}` ({_at(self.site)})"
        return f"{here}, by `{self.way[-1][1]}` ({_at(self.way[-1][0])})" if self.way else here


def _parsed(text: str) -> ast.Expression | None:
    try:
        return ast.parse(text, mode="eval")
    except SyntaxError:
        return None


def _at(site: SourceLine) -> str:
    return site.short


@dataclass(frozen=True, eq=False)
class _Test:
    """A candidate: the expression that decides, what it belongs to, and whether the line is reached where it is false."""

    value: ast.AST
    holder: ast.AST
    negated: bool = False
    case: ast.AST | None = None  # the one of a `match`, or of a table of functions, that leads to the line

    @property
    def is_loop(self) -> bool:
        """Whether it is what a loop goes through, and so no question."""
        return isinstance(self.holder, ast.For | ast.AsyncFor | ast.comprehension) and self.value is self.holder.iter

    @property
    def key(self) -> tuple[int, bool, int]:
        return id(self.value), self.negated, id(self.case)


@dataclass(frozen=True, eq=False)
class _Way:
    """How a line is reached: by body, the nodes in it that lead there, and how many calls away it is.

    `recorded`: what was recorded to run a function, whether or not the source shows that it does (`self.callback()`).
    """

    nodes: dict[Scope, list[ast.AST]]
    depth: dict[Scope, int]
    recorded: dict[Scope, ast.AST] = field(default_factory=dict)


def deciding_condition(
    sources: Mapping[str, str],
    one: SourceLine,
    other: SourceLine | None,
    ranks: Iterable[int] = (),
    others: Iterable[int] = (),
    *,
    been: tuple[bool, bool] = (False, False),
    callers: tuple[Sequence[SourceLine], Sequence[SourceLine]] = ((), ()),
) -> Decision | None:
    """What most likely sent `ranks` to one line and `others` to the other; None when nothing in the source tells.

    `other` None: the ranks that missed the line `one` went nowhere, they have ended. `been`: whether those that are not in this
    line now have been there before, in `one` and in `other`. `callers`: the lines that called the functions of these lines this
    time, the nearest first, as far as that is known.
    """
    program = program_of(sources)
    mine = _way_to(program, one, callers[0])
    theirs = _way_to(program, other, callers[1]) if other is not None else _Way({}, {})
    if mine is None or theirs is None:
        return None
    tests = list(_candidates(program, mine, theirs))
    if one == other:
        tests = [*tests_of_hooks(program, next(iter(mine.nodes.values()))), *_all_tests(program, mine)]
    if other is not None:  # both went on
        tests = [test for test in tests if not _ends_the_rank(program, test)]
    for site, known in ((one, been[0]), (other, been[1])):
        passed = _passed_each_time(program, site) if known and site is not None else []
        tests = [test for test in tests if test.key not in passed or not is_settled(program, test.value)]
    return _best(program, tests, (mine, theirs), tuple(ranks), tuple(others))


def _passed_each_time(program: UserProgram, site: SourceLine) -> list[tuple[int, bool, int]]:
    """The tests that stand before a line in its own body: whoever comes to it has passed them, from wherever it is called."""
    way = _way_to(program, site)
    (node,) = next(iter(way.nodes.values()))[:1] if way is not None else (None,)
    return [test.key for test in tests_around(program, node)] if node is not None else []


def deciding_value(sources: Mapping[str, str], site: SourceLine, differs: str) -> Decision | None:
    """What makes the arguments of the call in a line differ between ranks in this respect (ROOT, DTYPE, SHAPE, ...); None when
    nothing in the source tells."""
    return next((decision for _, decision in _values(sources, site, differs)), None)


def _values(sources: Mapping[str, str], site: SourceLine, differs: str) -> Iterator[tuple[float, Decision]]:
    """What makes an argument of the call in a line differ, and how telling that is: one, or none."""
    program = program_of(sources)
    way = _way_to(program, site)
    if way is None:
        return
    (node,) = next(iter(way.nodes.values()))[:1]
    parts = _arguments(node, differs) if isinstance(node, ast.Call) else [node]
    by_size, by_type = differs in (SHAPE, ROOT), differs == DTYPE
    origins = (origin(program, one, is_test=False, sizes_matter=by_size, types_matter=by_type) for one in parts)
    found = max(origins, key=lambda one: one.weight, default=None)
    if found is not None and found.weight >= LEAST:
        yield found.weight, _decision(step_of(program, node), found.way, found.also)


def most_telling_value(sources: Mapping[str, str], sites: Iterable[SourceLine], differs: str) -> Decision | None:
    """The same of several lines, of which it is the one that looks most as if each rank answered for itself."""
    found = ((weight, one) for site in dict.fromkeys(sites) for weight, one in _values(sources, site, differs))
    return max(found, key=lambda one: one[0], default=(0.0, None))[1]


_NAMED = {
    ROOT: ("src", "dst", "root", "group_src", "group_dst"),
    REDUCTION: ("op",),
    TAG: ("tag",),
    MEMBERS: ("ranks", "mesh_shape"),
}


def _arguments(call: ast.Call, differs: str) -> list[ast.expr]:
    """The arguments that say so; the positional ones too where none is named."""
    named = [k.value for k in call.keywords if k.arg in _NAMED.get(differs, ())]
    return named or [*call.args, *(k.value for k in call.keywords)]


def awaited_condition(sources: Mapping[str, str], site: SourceLine) -> Decision | None:
    """What the innermost `while` around a line waits for, with what makes it this rank's own: `while not path.exists()`."""
    program = program_of(sources)
    way = _way_to(program, site)
    if way is None:
        return None
    (node,) = next(iter(way.nodes.values()))[:1]
    tests = (one for one in tests_around(program, node) if isinstance(one.holder, ast.While))
    test = next((one for one in tests if one.value is getattr(one.holder, "test", None)), None)
    if test is None:
        return None
    found = origin(program, test.value)
    return _decision(_step(program, test), found.way, found.also) if found.weight >= LEAST else None


def leads_to(sources: Mapping[str, str], site: SourceLine, block: ast.AST) -> bool:
    """Whether a line stands in a block, or in a function that something in the block calls, directly or through others."""
    program = program_of(sources)
    way = _way_to(program, site)
    nodes = way.nodes.get(program.scope_of(block), ()) if way is not None else ()
    return any(parent is block for node in nodes for parent, _ in program.above(node))


def program_of(sources: Mapping[str, str]) -> UserProgram:
    """The user's files as one program, parsed once."""
    return _program(tuple(sorted(sources.items())))


@lru_cache(maxsize=8)
def _program(sources: tuple[tuple[str, str], ...]) -> UserProgram:
    return UserProgram.of(dict(sources))


def _best(
    program: UserProgram, tests: list[_Test], ways: tuple[_Way, _Way], ranks: tuple[int, ...], others: tuple[int, ...]
) -> Decision | None:
    best: tuple[float, _Test, Origin] | None = None
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
    questions = [test for test in questions if not is_replicated(program, test.value)] or questions
    left = questions or [test for test in tests if test.is_loop and not _is_spelled_out(program, test.value)]
    if best is None and len(left) == 1:
        found = origin(program, left[0].value, is_test=not left[0].is_loop, counted=left[0].is_loop)
        best = 0.0, left[0], found  # nothing else can have decided
    if best is None:
        return None
    found = best[2]
    decision = _decision(_step(program, best[1]), _with_answer(program, found.way, best[1].value), found.also)
    return replace(decision, call=_call_under(program, best[1], ways), exit=_exit_under(program, best[1]))


def _is_the_users(program: UserProgram, test: _Test) -> bool:
    """Whether it is a question: of a decorator, that one of the user's asks, and not `@torch.no_grad()`."""
    return not program.decorates(test.value) or bool(program.runs_of_decorator(test.value))


def _is_spelled_out(program: UserProgram, value: ast.AST) -> bool:
    """Whether the source itself says what a loop goes through, the same for everybody: `(1, 2, 3)`, `range(4)`."""
    return not any(
        isinstance(node, ast.Name | ast.Attribute) and not (isinstance(node, ast.Name) and node.id in _BUILT_IN)
        for node in ast.walk(value)
    )


_BUILT_IN = frozenset({"range", "enumerate", "reversed", "zip", "list", "tuple"})


def _exit_under(program: UserProgram, test: _Test) -> tuple[SourceLine, str] | None:
    """The statement by which a test, or a handler, leads away from what follows it."""
    holder = test.value if isinstance(test.value, ast.ExceptHandler) else test.holder
    body = holder.body if isinstance(holder, ast.If | ast.ExceptHandler) else []
    if not test.negated or not leaves(body):
        return None
    step = step_of(program, body[-1])
    return SourceLine(step.path, step.line, step.function), step.text


def _ends_the_rank(program: UserProgram, test: _Test) -> bool:
    """Whether a test leads away by raising what no handler above it catches: who took that way made no further call."""
    body = test.holder.body if isinstance(test.holder, ast.If) and test.negated else []
    if not body or not isinstance(body[-1], ast.Raise):
        return False
    waiting: list[ast.AST] = [body[-1]]
    known = set(waiting)
    for node in waiting:
        if any(
            isinstance(parent, ast.Try) and parent.handlers and child in parent.body
            for parent, child in program.above(node)
        ):
            return False
        above = [caller for caller in program.callers.get(program.scope_of(node), ()) if caller not in known]
        waiting += above
        known.update(above)
    return True


def _call_under(program: UserProgram, test: _Test, ways: tuple[_Way, _Way]) -> SourceLine:
    """The call under a test that leads to one of the lines, where that stands in another function."""
    decorated = program.scopes.get(program.parents[test.value]) if program.decorates(test.value) else None
    scope = decorated or program.scope_of(test.value)
    for way in ways:
        for node in way.nodes.get(scope, ()) if way.depth.get(scope) else ():
            if decorated or any(parent is test.holder for parent, _ in program.above(node)):
                return SourceLine(scope.path, lineno(node), scope.traceback_name)
    return SourceLine()


def _with_answer(program: UserProgram, way: tuple[Hop, ...], test: ast.AST) -> tuple[Hop, ...]:
    """The way, and what the function returns that the test asks, when nothing further was found."""
    if len(way) > 1:
        return way
    if isinstance(test, ast.ExceptHandler):
        raising = raising_tests(program, getattr(program.parents[test], "body", ()))
        return (*way, *(step_of(program, one) for one in list(raising)[:1]))
    if program.decorates(test):
        return (*way, *(step_of(program, one) for one in tests_of_decorator(program, test)[:1]))
    returned = [one for node in ast.walk(test) for target in program.targets(node) for one in program.returned(target)]
    return (*way, step_of(program, returned[0])) if len(returned) == 1 else way


def _decision(first: Hop, way: tuple[Hop, ...], also: Hop | None) -> Decision:
    site = SourceLine(first.path, first.line, first.function)
    rest = [
        (SourceLine(s.path, s.line, s.function), s.text) for s in way[1:] if (s.path, s.line) != (site.path, site.line)
    ]
    lines = list(dict.fromkeys(place for place, _ in rest))
    texts = dict(rest)
    shown = lines if len(lines) <= STEPS_SHOWN else [*lines[: STEPS_SHOWN // 2], *lines[-STEPS_SHOWN // 2 :]]
    other = (SourceLine(also.path, also.line, also.function), also.text) if also is not None else None
    return Decision(site, first.text, tuple((place, texts[place]) for place in shown), also=other)


def _step(program: UserProgram, test: _Test) -> Hop:
    step = step_of(program, test.value)
    words = {ast.If: "if", ast.While: "while", ast.For: "for ... in", ast.AsyncFor: "for ... in"}
    word = words.get(type(test.holder), "")
    return Hop(step.path, step.line, step.function, f"{word} {step.text}".strip())


def _may_separate(test: _Test, ranks: tuple[int, ...], others: tuple[int, ...]) -> bool:
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


# --- ways to a line ----------------------------------------------------------------------------------------------------------


def _way_to(program: UserProgram, site: SourceLine, callers: Sequence[SourceLine] = ()) -> _Way | None:
    """How a line is reached; only by these callers where the source shows them."""
    node = _node_of(program, site)
    if node is None:
        return None
    nodes: dict[Scope, list[ast.AST]] = {program.scope_of(node): [node]}
    depth = {program.scope_of(node): 0}
    recorded: dict[Scope, ast.AST] = {}
    waiting = list(nodes)
    for scope in waiting:
        if depth[scope] >= DEEPEST:
            continue
        called_at = callers[depth[scope]] if depth[scope] < len(callers) else None
        shown = program.callers.get(scope, [])
        calling = [n for n in shown if called_at is not None and _stands_at(program, n, called_at)]
        if not calling and called_at is not None and (node := _node_of(program, called_at)) is not None:
            calling = [node]
        if calling:
            recorded[scope] = calling[0]
        for caller in calling or shown:
            where = program.scope_of(caller)
            if where not in depth:
                depth[where], nodes[where] = depth[scope] + 1, []
                waiting.append(where)
            if depth[where] == depth[scope] + 1:
                nodes[where].append(caller)
    return _Way(nodes, depth, recorded)


def _stands_at(program: UserProgram, node: ast.AST, site: SourceLine) -> bool:
    ends = getattr(node, "end_lineno", None) or 0
    return program.scope_of(node).path == site.path and lineno(node) <= site.line <= ends


def _node_of(program: UserProgram, site: SourceLine) -> ast.AST | None:
    file = next((file for file in program.files if file.path == site.path), None)
    return _node_at(file, site.line) if file is not None else None


def _node_at(file: SourceFile, line: int) -> ast.AST | None:
    """The innermost statement of a line, as the call in it where it has one."""
    found: ast.AST | None = None
    for node in file.nodes(ast.stmt, ast.ExceptHandler):
        inside = node.lineno <= line <= (node.end_lineno or 0)
        if inside and not isinstance(node, FunctionNode | ast.ClassDef):
            found = node
    if found is None:
        return None
    calls = [n for n in ast.walk(found) if isinstance(n, ast.Call) and n.lineno <= line <= (n.end_lineno or 0)]
    held = [n for n in calls if not hasattr(found, "body") or n.lineno == line]
    return held[0] if held else found


# --- candidates --------------------------------------------------------------------------------------------------------------


def _candidates(program: UserProgram, mine: _Way, theirs: _Way) -> Iterator[_Test]:
    """The tests that decide between the two, the nearest to where they part first; those that both pass are none.

    Where no body is known that leads to both, as where a framework calls the one, only what stands around the lines themselves is
    known to lie between them.
    """
    shared = [scope for scope in mine.depth if scope in theirs.depth]
    top = min(shared, key=lambda s: (mine.depth[s] + theirs.depth[s], s.path, lineno(s.node)), default=None)
    parted = top is None and mine.depth and theirs.depth
    sides = [_around(program, way) if parted else _tests_down_to(program, way, top) for way in (mine, theirs)]
    keys = [{test.key for test in side} for side in sides]
    seen: set[tuple[int, bool, int]] = set()
    for side, other in ((sides[0], keys[1]), (sides[1], keys[0])):
        for test in side:
            if test.key not in other and test.key not in seen:
                seen.add(test.key)
                yield test


def _around(program: UserProgram, way: _Way) -> list[_Test]:
    """The questions in the body that a line stands in, and in those that were recorded to lead there."""
    nodes = [*next(iter(way.nodes.values())), *way.recorded.values()]
    return [test for node in nodes for test in tests_around(program, node) if not test.is_loop]


def _all_tests(program: UserProgram, way: _Way) -> list[_Test]:
    """The tests on every way to a line, its own body first."""
    return [test for scope, nodes in way.nodes.items() for node in nodes for test in tests_around(program, node)]


def _tests_down_to(program: UserProgram, way: _Way, top: Scope | None) -> list[_Test]:
    """The tests on the way from a body down to the line; without one, from wherever the way begins."""
    scopes = [top] if top is not None else [s for s in way.depth if way.depth[s] == max(way.depth.values())]
    reached: list[Scope] = []
    while scopes:
        reached += scopes
        below = {t for scope in scopes for node in way.nodes.get(scope, ()) for t in _run_by(program, node, way)}
        scopes = [s for s in below if s not in reached and all(way.depth[s] < way.depth[up] for up in scopes)]
    ordered = sorted((s for s in reached if s in way.nodes), key=lambda s: way.depth[s])
    found = [
        replace(test, case=_led_to(program, node, way)) if test.holder is node and test.case is None else test
        for scope in ordered
        for node in way.nodes[scope]
        for test in tests_around(program, node)
    ]
    return [
        *found,
        *(_Test(one, one) for s in ordered if s is not top for one in getattr(s.node, "decorator_list", ())),
    ]


def _led_to(program: UserProgram, node: ast.AST, way: _Way) -> ast.AST | None:
    """Of several functions that a call chooses from, the one through which the line is reached."""
    return next((scope.node for scope in _run_by(program, node, way)), None)


def _run_by(program: UserProgram, node: ast.AST, way: _Way) -> Iterator[Scope]:
    for scope in way.nodes:
        if node in program.callers.get(scope, ()) or way.recorded.get(scope) is node:
            yield scope


def tests_around(program: UserProgram, node: ast.AST) -> Iterator[_Test]:
    """Everything that decides, in its own body, whether a node is reached, the nearest first."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(program.targets(node)) > 1:
        loops = (n for p, _ in program.above(node) if isinstance(p, ast.For) for n in ast.walk(p.target))
        if getattr(node.func.value, "id", "") not in {getattr(one, "id", None) for one in loops}:
            yield _Test(node.func.value, node)  # which of several objects it is
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
        yield _Test(node.func.slice, node)  # which function of a table
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.IfExp):
        yield _Test(node.func.test, node)
    elif is_lazy_log(node):
        yield _Test(node, node)  # whether it formats what it is given
    for parent, child in program.above(node):
        yield from _of_holder(program, parent, child)
        yield from _passed_before(parent, child)


def _of_holder(program: UserProgram, parent: ast.AST, child: ast.AST) -> Iterator[_Test]:
    if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
        orelse = parent.orelse if isinstance(parent.orelse, list) else [parent.orelse]
        yield _Test(parent.test, parent, child in orelse)
    elif isinstance(parent, ast.While) and child in parent.body:
        yield _Test(parent.test, parent)
        yield from _exits(program, parent)
    elif isinstance(parent, ast.For | ast.AsyncFor) and child in parent.body:
        yield from _exits(program, parent)
        yield _Test(parent.iter, parent)
    elif isinstance(parent, ast.comprehension) and child in parent.ifs[1:]:
        yield _Test(parent.ifs[0], parent)
    elif isinstance(parent, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for generator in parent.generators:
            if child is not generator:
                yield from (_Test(test, generator) for test in generator.ifs)
                yield _Test(generator.iter, generator)
    elif isinstance(parent, ast.BoolOp) and child is not parent.values[0]:
        before = parent.values[: parent.values.index(child)] if child in parent.values else []
        yield from (_Test(test, parent, isinstance(parent.op, ast.Or)) for test in before)
    elif isinstance(parent, ast.ExceptHandler):
        yield _Test(parent, parent)
    elif isinstance(parent, ast.Try) and child in parent.body:
        kinds = (
            (handler, ast.unparse(handler.type) if handler.type is not None else "") for handler in parent.handlers
        )
        yield from (_Test(handler, parent) for handler, kind in kinds if "Interrupt" not in kind and "Exit" not in kind)
    elif isinstance(parent, ast.With | ast.AsyncWith) and child in parent.body:
        yield from (_Test(item.context_expr, parent) for item in parent.items if _may_leave(program, item.context_expr))
    elif isinstance(parent, ast.Match) and child is not parent.subject:
        yield _Test(parent.subject, parent, case=child)


def _may_leave(program: UserProgram, manager: ast.expr) -> bool:
    """Whether the statements of a `with` may be skipped: the manager is the user's own, or made to swallow exceptions."""
    own = any(program.targets(node) for node in ast.walk(manager)) or bool(program.classes_of(manager))
    return own or not isinstance(manager, ast.Call) or last_word(manager.func) == "suppress"


def tests_of_hooks(program: UserProgram, nodes: Iterable[ast.AST]) -> list[_Test]:
    """Where a line leaves the loop to a framework: the tests in the hooks that it calls back by which these steer it.

    A hook is an `on_...` method of the user's; it steers by setting something of what it is given, or of its trainer.
    """
    if any(program.targets(one) for node in nodes for one in ast.walk(node)):
        return []
    found: list[_Test] = []
    for name, scopes in program.functions.items():
        for scope in scopes if name.startswith("on_") else ():
            for node in program.inside(scope):
                if scope.of_class and isinstance(node, ast.Assign) and any(map(_is_of_framework, node.targets)):
                    found += [_Test(test, program.parents[test]) for test in deciding_tests(program, node)]
    return found


def _is_of_framework(target: ast.AST) -> bool:
    """Whether an assignment goes to an attribute of something else than the hook's own object, or to its trainer's."""
    parts = dotted(target).split(".") if isinstance(target, ast.Attribute) else []
    return len(parts) == 2 + (parts[:1] == ["self"]) and (parts[0] != "self" or parts[1] == "trainer")


def _exits(program: UserProgram, loop: ast.For | ast.AsyncFor | ast.While) -> Iterator[_Test]:
    """The conditions that end a loop from within."""
    for statement in _own_statements(loop.body):
        if isinstance(statement, ast.If) and leaves(statement.body, LEAVING[1:]):
            yield _Test(statement.test, statement, True)
        yield from _raised_in(program, statement)


def _raised_in(program: UserProgram, statement: ast.stmt) -> Iterator[_Test]:
    """The conditions under which a simple statement calls something that raises, when somebody further up catches it."""
    if hasattr(statement, "body"):
        return
    for test in raising_tests(program, [statement]):
        yield _Test(test, statement, True)
        for parent, child in program.above(statement):
            if isinstance(parent, ast.If) and child in parent.body:
                yield _Test(parent.test, parent)


def _passed_before(parent: ast.AST, child: ast.AST) -> Iterator[_Test]:
    """What stands before a statement in its block and may have left it: `if ...: continue`, a `try` whose handler returns."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if not isinstance(block, list) or child not in block:
            continue
        for statement in reversed(block[: block.index(child)]):
            for inner in (statement, *_own_statements(list(_blocks_of(statement)))):
                if isinstance(inner, ast.If) and leaves(inner.body):
                    yield _Test(inner.test, inner, True)
                elif isinstance(inner, ast.Try):
                    yield from (_Test(h, inner, True) for h in inner.handlers if leaves(h.body))


def _blocks_of(statement: ast.AST) -> Iterator[ast.stmt]:
    if isinstance(statement, ast.If | ast.With | ast.AsyncWith | ast.Try):
        yield from statement.body
        yield from getattr(statement, "orelse", ())


def _own_statements(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of the `if`s, `with`s and `try`s in it, not those of loops and functions."""
    for statement in block:
        yield statement
        if isinstance(statement, ast.If | ast.With | ast.AsyncWith | ast.Try):
            handlers = [one for handler in getattr(statement, "handlers", ()) for one in handler.body]
            yield from _own_statements([*statement.body, *getattr(statement, "orelse", ()), *handlers])
