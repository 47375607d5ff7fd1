"""Why a value may differ between ranks: followed back through the source to the expression that each rank answers for itself.

Pure `ast`. Nothing here is a proof; the most telling of the expressions that a value is made of is named, with the lines on the
way there. A value that came out of a collective is the same everywhere and is not followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from distdoctor.diagnosis.source.rank_guard import is_about_rank
from distdoctor.diagnosis.source.rank_words import lets_one_in
from distdoctor.diagnosis.source.source_file import Scope, dotted, keyword, last_word, lineno
from distdoctor.diagnosis.source.text_sets import set_of_texts
from distdoctor.diagnosis.source.user_program import UserProgram

STEPS = 6  # from a value to what it is made of
STEPS_OF_PICKS = 9  # from a list of samples to what picked them
MOST = 400  # expressions looked at
AS_TELLING = 0.5  # less weight than the best, and it may as well be meant
PER_STEP = 0.3  # what is far away is less likely meant

_FILES = frozenset({"exists", "isfile", "is_file", "isdir", "is_dir", "listdir", "glob", "iglob", "scandir", "stat",
                    "getsize", "getmtime", "iterdir", "lexists", "rglob", "open", "read_text", "read_bytes"})  # fmt: skip
CLOCKS = frozenset({"time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns", "now"})
_MACHINE = frozenset({"gethostname", "cpu_count", "virtual_memory", "memory_allocated", "memory_reserved", "getpid",
                      "mem_get_info", "uname", "getloadavg", "disk_usage", "node", "memory_info"})  # fmt: skip
_OF_A_MACHINE = re.compile(r"HOST|NODE|DEVICE|MACHINE|POD|RANK|WORKER|TASK|PROC")
_OF_A_MODEL = re.compile(r"requires_grad\b.*\bparameters\(")
_CHANCE = frozenset(
    {"random", "rand", "randn", "randint", "choice", "uniform", "shuffle", "randperm", "sample", "randrange"}
)
_DATA = frozenset(
    {"item", "any", "all", "isnan", "isinf", "isfinite", "tolist", "nonzero", "get_nowait"}
    | {"std", "var", "mean", "median", "norm"}
)
_SIZES = frozenset({"len", "numel", "size"})
LOCAL_WORDS = re.compile(
    r"loss|metric|score|grad|acc(?:uracy)?$|entropy|(?:^|_)kl(?:_|$)|flag|stop|skip|elapsed|patience|best|deadline|(?:^|_)found"
)
COLLECTIVES = re.compile(
    r"^(?:all_reduce|broadcast|all_gather|reduce_scatter|scatter|all_to_all|broadcast_object|all_gather_object|gather_object"
    r"|scatter_object|recv|reduce|fsdp_all_reduce)(?:_list|_into_tensor|_tensor|_single|_coalesced|_object_list)?$"
)
SALTED = 6.5  # of a string: another number in every process, whatever else is the same (PYTHONHASHSEED)
RANK, FILE, CLOCK, MACHINE, ERROR, CHOICE, SWALLOWED = 6.0, 5.0, 5.0, 4.5, 3.5, 3.5, 2.6
MEMORY, LOG = 3.5, 3.5  # what a decorator remembers, whether a log formats
ENVIRONMENT = 2.6  # most variables are the same for all processes of a job
TYPE = 3.0  # a dtype that follows from the data
CHANCE, DATA, MENTION, LENGTH, SIZE, WORD = (
    3.0,
    3.0,
    2.6,
    2.5,
    2.0,
    1.5,
)  # SIZE: of a value, where it says how and not why


_REMEMBERS = frozenset({"cache", "lru_cache", "cached", "memoize", "memoise", "memoized", "memo"})
_LOGS = frozenset({"debug", "info", "warning", "error", "log"})
_INFERRING = frozenset({"tensor", "as_tensor", "asarray", "array"})  # take their dtype from what they are given
LEAVING = (ast.Continue, ast.Break, ast.Return, ast.Raise)


@dataclass(frozen=True)
class Hop:
    """One expression on the way from a condition to what makes it differ."""

    path: str
    line: int
    function: str
    text: str


@dataclass(frozen=True)
class Origin:
    """Where a value becomes one rank's own: how telling that is, and the way there, the value itself first."""

    weight: float
    way: tuple[Hop, ...]
    also: Hop | None = None  # of what differs as likely
    last: ast.AST | None = None  # the expression by which the way ends


@dataclass(frozen=True)
class _Visit:
    """`back`: it is followed because it decides whether something is done, not as a value. `counted`: only how many it gives.
    `any_value`: only whether it is something at all, as in `x is None`, so that nothing matters of what it holds."""

    value: ast.AST
    steps: int
    way: tuple[ast.AST, ...]
    back: bool = False
    counted: bool = False
    any_value: bool = False


def origin(
    program: UserProgram,
    value: ast.AST,
    *,
    is_test: bool = True,
    sizes_matter: bool = True,
    types_matter: bool = False,
    counted: bool = False,
    picks_matter: bool = False,
) -> Origin:
    """The most telling expression behind a value; weight 0 where everything it is made of is the same on all ranks.

    `is_test`: what it holds matters, as in a condition; else only what it is: its size (`sizes_matter`), type (`types_matter`) or
    choice.
    `counted`: only how many items it gives matters, as in a loop. `picks_matter`: which items it holds matters, picked by chance
    or by the number of the rank; they come a longer way than what a test asks for.
    """
    found: list[tuple[float, tuple[ast.AST, ...]]] = [(0.0, (value,))]
    by_name: set[tuple[ast.AST, ...]] = set()  # ways of which no more is known than what a name sounds like
    per_step = PER_STEP if is_test else PER_STEP / 2  # a value has no condition that would be the better answer
    waiting = [_Visit(value, 0, (value,), is_test, counted)]
    into_instances = not is_test and not counted
    seen: set[tuple[ast.AST, bool]] = {(value, counted)}
    at = 0
    while at < len(waiting) and at < MOST:
        visit = waiting[at]
        at += 1
        if visit.counted and isinstance(visit.value, ast.List | ast.Tuple | ast.Set | ast.BinOp):
            waiting += [replace(visit, value=part) for part in _counted_in(visit.value)]
            continue
        by_value = is_test and not visit.any_value
        told = telling(program, visit.value, visit.back, by_value, sizes_matter and not visit.any_value)
        told = max(told, TYPE if types_matter and _infers_dtype(visit.value) else 0.0)
        told = max(told, _picks(program, visit.value) if picks_matter else 0.0)
        weight = told - per_step * visit.steps
        if weight > 0:
            found.append((weight, visit.way))
        if told == WORD:
            by_name.add(visit.way)
        if visit.steps >= (STEPS_OF_PICKS if picks_matter else STEPS):
            continue
        for made_of, back, by in _made_of(program, visit, into_instances=into_instances):
            counted = visit.counted and (not back or _is_gone_through(program, made_of))
            if (made_of, counted) not in seen:
                seen.add((made_of, counted))
                is_value = not back or (not by and not _is_choice(program, made_of))
                any_value = is_value and (visit.any_value or _asks_for_none(visit.value))
                there = (*visit.way, *by, made_of)
                waiting.append(_Visit(made_of, visit.steps + 1, there, back and not any_value, counted, any_value))
    best = max(found, key=lambda one: one[0])
    way = tuple(step_of(program, node) for node in (*best[1], *_further(program, best[1], found, by_name)))
    also = _as_telling(program, way, [one for one in found if one[0] >= best[0] - AS_TELLING])
    return Origin(best[0], way, also or _in_the_other_branch(program, best[1]), best[1][-1])


def _is_choice(program: UserProgram, value: ast.AST) -> bool:
    choice = program.parents.get(value)
    return isinstance(choice, ast.IfExp) and choice.test is value


def _asks_for_none(test: ast.AST) -> bool:
    """`x is None`, `x is not None`, also as all that is negated."""
    if isinstance(test, ast.UnaryOp):
        return _asks_for_none(test.operand)
    return isinstance(test, ast.Compare) and all(
        isinstance(op, ast.Is | ast.IsNot) and isinstance(other, ast.Constant) and other.value is None
        for op, other in zip(test.ops, test.comparators, strict=True)
    )


def _picks(program: UserProgram, value: ast.AST) -> float:
    """How much an expression by itself looks as if it picked or ordered items in a way of the process's own."""
    best = 0.0
    for node in own_nodes(program, value):
        if isinstance(node, ast.Call) and last_word(node.func) in _CHANCE and not program.targets(node):
            best = max(best, CHANCE if keyword(node, "generator") is None else 0.0)
        elif isinstance(node, ast.Subscript) and is_about_rank(node.slice):
            best = max(best, CHOICE)
    return best


def is_share(value: ast.AST | None) -> bool:
    """Whether an expression takes what is this rank's of something: `rows[rank::world_size]`."""
    nodes = ast.walk(value) if value is not None else ()
    return any(isinstance(node, ast.Subscript) and is_about_rank(node.slice) for node in nodes)


def _is_gone_through(program: UserProgram, value: ast.AST) -> bool:
    """Whether a loop goes through this value: how often its body runs is how many items there are."""
    loop = program.parents.get(value)
    return isinstance(loop, ast.For | ast.AsyncFor) and loop.iter is value


def _counted_in(value: ast.List | ast.Tuple | ast.Set | ast.BinOp) -> Iterator[ast.expr]:
    """What decides how many items there are: of `[a, *rest] * n` that is `rest` and `n`."""
    for part in [value.left, value.right] if isinstance(value, ast.BinOp) else value.elts:
        if isinstance(part, ast.List | ast.Tuple | ast.Set):
            yield from _counted_in(part)
        elif isinstance(value, ast.BinOp) or isinstance(part, ast.Starred):
            yield part


def _further(
    program: UserProgram,
    way: tuple[ast.AST, ...],
    found: list[tuple[float, tuple[ast.AST, ...]]],
    by_name: Container[tuple[ast.AST, ...]],
) -> Sequence[ast.AST]:
    """The most telling that the way leads on to, where it ends by a size, or by what a name sounds like."""
    if way not in by_name and not any(_sizes_in(program, way[-1])):
        return ()
    further = [one for one in found if len(one[1]) > len(way) and one[1][: len(way)] == way]
    return max(further, key=lambda one: one[0])[1][len(way) :] if further else _sized_by(program, way[-1])


def _sized_by(program: UserProgram, value: ast.AST) -> list[ast.expr]:
    """Where the variable gets its value whose length, or which as a length, makes the expression as large as it is; [] where
    there is none, or several."""
    names = [one for one in _sizes_in(program, value) if isinstance(one, ast.Name)]
    stores = [program.stores(one.id, program.scope_of(value)) for one in names]
    made = [
        stored
        for found in stores
        for statement, stored in found
        if len(found) == 1 and isinstance(statement, ast.Assign) and lineno(statement) < lineno(value)
    ]
    return made if len(made) == 1 and any(isinstance(node, ast.Call) for node in ast.walk(made[0])) else []


def _sizes_in(program: UserProgram, value: ast.AST) -> Iterator[ast.expr]:
    """What `len` is asked of in an expression, and the sizes beside it: `rows` and `width` of `zeros(len(rows), width)`."""
    for node in own_nodes(program, value):
        if isinstance(node, ast.Call) and last_word(node.func) == "len" and len(node.args) == 1:
            yield node.args[0]
            beside = program.parents.get(node)
            given = beside.elts if isinstance(beside, ast.Tuple) else getattr(beside, "args", ())
            yield from (one for one in given if one is not node)


def _as_telling(
    program: UserProgram, way: tuple[Hop, ...], found: list[tuple[float, tuple[ast.AST, ...]]]
) -> Hop | None:
    """Another expression behind the same value that may as well be what differs, on a line that is not on the way."""
    lines = {(hop.path, hop.line) for hop in way}
    hops = [step_of(program, one[-1]) for _, one in sorted(found, key=lambda one: -one[0])]
    return next((hop for hop in hops if len(way) > 1 and (hop.path, hop.line) not in lines), None)


def _in_the_other_branch(program: UserProgram, way: tuple[ast.AST, ...]) -> Hop | None:
    """What is stored under the same name in the other branch of the `if` by which the way ends."""
    if len(way) < 2 or not isinstance(choice := program.parents.get(way[-1]), ast.If) or choice.test is not way[-1]:
        return None
    name = next((name for name, stored in _stored_in(choice) if stored is way[-2]), "")
    others = (stored for other, stored in _stored_in(choice) if other == name and stored is not way[-2])
    return next((step_of(program, stored) for stored in others), None)


def _stored_in(choice: ast.If) -> Iterator[tuple[str, ast.expr]]:
    """(variable, value) of the assignments in both branches."""
    for statement in (*choice.body, *choice.orelse):
        if isinstance(statement, ast.Assign):
            yield from ((one.id, statement.value) for one in statement.targets if isinstance(one, ast.Name))


def step_of(program: UserProgram, node: ast.AST) -> Hop:
    scope = program.scope_of(node)
    if isinstance(node, ast.ExceptHandler):
        kind = f" {ast.unparse(node.type)}" if node.type is not None else ""
        return Hop(scope.path, node.lineno, scope.traceback_name, f"except{kind}")
    if isinstance(node, ast.Constant) and _is_stored_by_signal(program, node):
        node = program.parents[node]  # a bare `True` tells nobody anything
    return Hop(scope.path, lineno(node), scope.traceback_name, " ".join(ast.unparse(node).split())[:120])


def telling(program: UserProgram, value: ast.AST, is_test: bool, by_content: bool, sizes_matter: bool = True) -> float:
    """How much an expression by itself looks as if each rank answered it for itself.

    `is_test`: it decides by itself. `by_content`: what the data holds matters, not only how much of it there is.
    """
    if isinstance(value, ast.ExceptHandler):
        leaves = isinstance(value.body[-1], ast.Return | ast.Continue | ast.Break)
        return ERROR if leaves else SWALLOWED
    if program.decorates(value):
        return RANK if lets_one_in(value) else MEMORY if remembers(value) else 0.0
    if is_test and is_lazy_log(value):
        return LOG
    if isinstance(value, ast.expr) and _is_gone_through(program, value) and set_of_texts(program, value):
        return SALTED
    if _is_stored_by_signal(program, value):
        return CLOCK
    best = RANK if is_test and _asks_for_rank(value) else 0.0
    for node in own_nodes(program, value):
        if isinstance(node, ast.IfExp | ast.Compare) and is_about_rank(getattr(node, "test", node)):
            best = max(best, RANK if is_test else CHOICE)
        elif _gives_to_one(node):
            best = max(best, RANK)
        elif isinstance(node, ast.Call) and not program.targets(node):
            if not _is_size_of_constant(program, node):
                best = max(best, _of_call(node, by_content or is_test, sizes_matter))
        elif isinstance(node, ast.Call) and is_test and LOCAL_WORDS.search(last_word(node.func)):
            best = max(best, WORD)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            word = node.id if isinstance(node, ast.Name) else node.attr
            if is_test and LOCAL_WORDS.search(word) and not _is_agreed(program, node, program.scope_of(value)):
                best = max(best, WORD)
        if isinstance(node, ast.Name | ast.Attribute | ast.Constant) and is_about_rank(node):
            best = max(best, MENTION)
    return best


def _is_stored_by_signal(program: UserProgram, value: ast.AST) -> bool:
    """Whether a signal stores it, which reaches each process at a moment of its own."""
    statement = program.parents.get(value)
    is_stored = isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is value
    return is_stored and program.scope_of(value) in program.signal_handlers


def remembers(decorator: ast.AST) -> bool:
    """Whether a decorator keeps what a function has returned, so that its body does not run again: `@functools.lru_cache`."""
    return last_word(decorator.func if isinstance(decorator, ast.Call) else decorator) in _REMEMBERS


def is_lazy_log(value: ast.AST) -> bool:
    """Whether a call leaves it to a logger, and so to its level, whether its arguments are formatted: `log.info("%s", x)`."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or len(value.args) < 2:
        return False
    return value.func.attr in _LOGS


def _infers_dtype(value: ast.AST) -> bool:
    """Whether an expression makes a tensor whose dtype depends on what it holds: of an empty list it is float32."""
    calls = (node for node in ast.walk(value) if isinstance(node, ast.Call) and last_word(node.func) in _INFERRING)
    given = (one.args[0] for one in calls if one.args and keyword(one, "dtype") is None)
    return any(not isinstance(one, ast.Constant) for one in given)


def own_nodes(program: UserProgram, value: ast.AST) -> Iterator[ast.AST]:
    """The nodes of an expression, the arguments of the user's own functions left out: these are followed into the functions."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        yield node
        own = isinstance(node, ast.Call) and bool(program.targets(node))
        if isinstance(node, ast.Call) and own:
            waiting += [node.func.value] if isinstance(node.func, ast.Attribute) else []
        else:
            waiting += ast.iter_child_nodes(node)


def _asks_for_rank(test: ast.AST) -> bool:
    """Whether a test is a question about the rank, by itself or as a part: not where the rank only goes into a call."""
    if isinstance(test, ast.BoolOp):
        return any(_asks_for_rank(one) for one in test.values)
    if isinstance(test, ast.UnaryOp):
        return _asks_for_rank(test.operand)
    if isinstance(test, ast.Call):
        return is_about_rank(test.func)
    return isinstance(test, ast.Name | ast.Attribute | ast.Compare) and is_about_rank(test)


def _of_call(call: ast.Call, by_content: bool, sizes_matter: bool) -> float:
    function = call.func
    name = last_word(function)
    if isinstance(function, ast.Name) and name == "hash":
        return SALTED
    if name in _FILES:
        return FILE
    if name in CLOCKS and (isinstance(function, ast.Name) or _root(function) in ("time", "datetime")):
        return CLOCK
    if name == "getenv" or ast.unparse(function).startswith("os.environ"):
        return MACHINE if _OF_A_MACHINE.search(ast.unparse(call)) else ENVIRONMENT
    if name in _MACHINE:
        return MACHINE
    if name in _CHANCE:
        return CHANCE if by_content else 0.0
    if name in _SIZES and sizes_matter:
        return LENGTH if by_content else SIZE if name == "len" else WORD
    of_a_model = name in ("any", "all") and _OF_A_MODEL.search(ast.unparse(call))  # which is the same on all ranks
    return DATA if name in _DATA and by_content and not of_a_model else 0.0


def _is_size_of_constant(program: UserProgram, call: ast.Call) -> bool:
    """Whether a call asks how many there are of what the module itself spells out."""
    name = call.args[0] if len(call.args) == 1 and last_word(call.func) == "len" else None
    if not isinstance(name, ast.Name):
        return False
    stores = program.stores(name.id, program.scope_of(name))
    return bool(stores) and all(
        isinstance(program.scope_of(statement).node, ast.Module) and not isinstance(value, ast.Call)
        for statement, value in stores
    )


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return getattr(node, "id", "")


_Reason = tuple[
    ast.AST, bool, tuple[ast.AST, ...]
]  # an expression, whether only that it decides counts, what it decided about


def _made_of(program: UserProgram, visit: _Visit, *, into_instances: bool) -> Iterator[_Reason]:
    """What an expression depends on: the values of its names, what its calls return, and the conditions that chose these.

    `into_instances`: an instance of a class is as large as what it is made of.
    """
    value, is_test, counted = visit.value, visit.back, visit.counted
    scope = program.scope_of(value)
    if isinstance(value, ast.ExceptHandler):
        yield from ((test, True, ()) for test in raising_tests(program, getattr(program.parents[value], "body", ())))
        return
    if isinstance(value, ast.Name) and value.id == "self":
        yield from ((one, False, ()) for one in _receivers(program, scope)[:3])
    for node in own_nodes(program, value):
        if isinstance(node, ast.IfExp):
            yield node.test, is_test, ()
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield from _of_variable(program, node, scope)
            for handed_on in _handed_on(program, node):
                yield from _of_function(program, handed_on, True, counted=False)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield from _of_stores(program, _stores_of(program, node, scope)[:8])
        for target in program.targets(node)[:3]:
            yield from _of_function(program, target, is_test, counted)
            if into_instances and isinstance(node, ast.Call) and target.name in ("__init__", "__post_init__"):
                yield from ((one, False, ()) for one in (*node.args, *(k.value for k in node.keywords)))
    yield from ((test, True, ()) for test in tests_of_decorator(program, value))
    if isinstance(value, ast.expr):
        for target in program.methods(program.classes_of(value), "__iter__", "__len__", "__getitem__", "__bool__")[:4]:
            yield from _of_function(program, target, is_test, counted)


def _stores_of(program: UserProgram, node: ast.Attribute, scope: Scope) -> list[tuple[ast.AST, ast.expr]]:
    """What is stored under the name of an attribute; of `self`, not what unrelated classes store in their own objects."""
    stores = program.stores(node.attr, None)
    if not isinstance(node.value, ast.Name) or node.value.id != "self" or not scope.of_class:
        return stores
    return [
        one
        for one in stores
        if program.are_related(program.scope_of(one[0]).of_class, scope.of_class) or not _is_of_self(one[0], node.attr)
    ]


def _is_of_self(statement: ast.AST, attribute: str) -> bool:
    """Whether a statement stores something under this name of its own object."""
    stored = (one for one in ast.walk(statement) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    return any(one.attr == attribute and isinstance(one.value, ast.Name) and one.value.id == "self" for one in stored)


def _receivers(program: UserProgram, method: Scope) -> list[ast.expr]:
    """The objects whose method it is where it is called: `kind()` of `kind().run()`."""
    calls = (node.func for node in program.callers.get(method, ()) if isinstance(node, ast.Call))
    return [one.value for one in calls if isinstance(one, ast.Attribute)]


def _handed_on(program: UserProgram, name: ast.Name) -> list[Scope]:
    """The user's function that a call gets as an argument: `takewhile(affordable, costs)`."""
    call = program.parents.get(name)
    if not isinstance(call, ast.Call) or name not in call.args:
        return []
    return [one for one in program.functions.get(name.id, ()) if not one.of_class][:1]


def _of_variable(program: UserProgram, node: ast.Name, scope: Scope) -> Iterator[_Reason]:
    if _is_agreed(program, node, scope):
        return
    yield from ((call, True, ()) for call in _collectives_on(program, node, scope) if _gives_to_one(call))
    stores = program.stores(node.id, scope)[:12]
    yield from _of_stores(
        program, [s for s in stores if program.scope_of(s[0]) is not scope or lineno(s[0]) <= node.lineno]
    )
    yield from ((one, False, ()) for one in program.passed(scope, node.id)[:6])


def _of_stores(program: UserProgram, stores: Iterable[tuple[ast.AST, ast.expr]]) -> Iterator[_Reason]:
    """What is stored, where in a container it is put, and what decides whether it is."""
    for statement, stored in stores:
        yield stored, False, ()
        yield from ((place, False, (stored,)) for place in _subscripts(statement))
        yield from ((test, True, (stored,)) for test in deciding_tests(program, statement))


def _subscripts(statement: ast.AST) -> Iterator[ast.expr]:
    """The index of what is assigned: the `rank` of `table[rank] = score`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    yield from (target.slice for target in targets if isinstance(target, ast.Subscript))


def _of_function(program: UserProgram, target: Scope, is_test: bool, counted: bool) -> Iterator[_Reason]:
    for value in program.returned(target)[:6]:
        if not (counted and isinstance(program.parents[value], ast.Yield)):
            yield value, is_test, ()
        yield from ((test, True, (value,)) for test in deciding_tests(program, value))


def raising_tests(program: UserProgram, block: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The tests under which a function that is called in these statements raises."""
    for statement in block:
        for node in ast.walk(statement):
            for target in program.targets(node)[:3]:
                for one in program.inside(target):
                    if isinstance(one, ast.Raise):
                        yield from deciding_tests(program, one)[:1]


def deciding_tests(program: UserProgram, node: ast.AST) -> list[ast.AST]:
    """The tests, in the body that a node stands in, that decide whether it is reached, the nearest first."""
    found: list[ast.AST] = []
    for parent, child in program.above(node):
        found += (one.test for one in reversed(_before(parent, child)) if isinstance(one, ast.If) and leaves(one.body))
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
            found.append(parent.test)
        elif isinstance(parent, ast.For | ast.AsyncFor) and child in parent.body:
            found.append(parent.iter)
    return found


def _before(parent: ast.AST, child: ast.AST) -> list[ast.stmt]:
    """What stands before a statement in its block."""
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    return next((block[: block.index(child)] for block in blocks if isinstance(block, list) and child in block), [])


def tests_of_decorator(program: UserProgram, node: ast.AST) -> list[ast.AST]:
    """The tests under which a decorator of the user's runs what it decorates."""
    return [test for run in program.runs_of_decorator(node) for test in deciding_tests(program, run)]


def leaves(body: list[ast.stmt], leaving: tuple[type[ast.stmt], ...] = LEAVING) -> bool:
    """Whether a block ends by going elsewhere, or by ending the process."""
    return bool(body) and (isinstance(body[-1], leaving) or _ends_the_process(body[-1]))


def _ends_the_process(statement: ast.stmt) -> bool:
    """Whether it is `sys.exit(...)`, `os._exit(...)`, `exit()` or `quit()`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and last_word(call.func) in ("exit", "_exit", "quit", "abort")


def is_made_the_same(program: UserProgram, value: ast.AST) -> bool:
    """Whether an expression asks for what a collective has made the same on all ranks."""
    return bool(collectives_behind(program, value))


def collectives_behind(program: UserProgram, value: ast.AST) -> list[ast.Call]:
    """The collectives that have made something the same on all ranks that an expression asks for."""
    names = (node for node in own_nodes(program, value) if isinstance(node, ast.Name))
    return [call for name in names for call in _agreeing(program, name, program.scope_of(value))]


def _is_agreed(program: UserProgram, name: ast.expr, scope: Scope) -> bool:
    """Whether a collective has made this variable the same on all ranks before it is used here."""
    return isinstance(name, ast.Name) and bool(_agreeing(program, name, scope))


def _agreeing(program: UserProgram, name: ast.Name, scope: Scope) -> list[ast.Call]:
    return [call for call in _collectives_on(program, name, scope) if not _gives_to_one(call)]


def _collectives_on(program: UserProgram, name: ast.Name, scope: Scope) -> list[ast.Call]:
    """The collectives on a variable that stand before it is used here."""
    calls = (node for node in program.inside(scope) if isinstance(node, ast.Call) and node.lineno < name.lineno)
    found = (call for call in calls if COLLECTIVES.match(last_word(call.func)))
    return [call for call in found if any(getattr(one, "id", "") == name.id for one in call.args[:1])]


def _gives_to_one(node: ast.AST) -> bool:
    """Whether a collective leaves its result on one rank alone: torch's `reduce`, not accelerate's, which takes a word."""
    if not isinstance(node, ast.Call) or last_word(node.func) != "reduce":
        return False
    of_torch = dotted(node.func) in ("reduce", "dist.reduce", "distributed.reduce", "torch.distributed.reduce")
    return any(one.arg in ("dst", "group_dst") for one in node.keywords) or (
        of_torch and len(node.args) > 1 and not isinstance(getattr(node.args[1], "value", 0), str)
    )
