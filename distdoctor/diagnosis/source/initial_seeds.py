"""The line that seeds the generator from which the initial weights are drawn, where each rank gives it a seed of its own.

torch.manual_seed(args.seed + rank)      # the last seed before the model is built
model = Net()

Pure `ast`. Only the last seed before the model counts: a later one that is the same on all ranks undoes it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.call_edits import node_replaced
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.given_values import Line, lines_of_way, maker_of, way_back
from distdoctor.diagnosis.source.rank_guard import is_about_rank
from distdoctor.diagnosis.source.rank_local import CLOCKS, deciding_tests
from distdoctor.diagnosis.source.source_file import dotted, last_word, lineno
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.diagnosis.source.ways import Way, way_to

_SEEDING_TORCH = frozenset({"manual_seed", "seed_everything", "set_seed"})
_OF_A_PROCESS = CLOCKS | {"getpid", "hash", "urandom", "uuid4"}


@dataclass(frozen=True)
class InitialSeed:
    """`lines`: the seeding call, and what its seed is made of, up to where it becomes one rank's own.

    `edits` take the rank out of the seed; () where that is no change of one expression that nothing else uses. `only_where`: the
    seed is the same, and the last line is a condition under which ranks have it.
    """

    lines: tuple[Line, ...]
    edits: tuple[Edit, ...] = ()
    only_where: bool = False


def initial_seed(sources: Mapping[str, str], parameter: str = "") -> InitialSeed | None:
    """The last seed that torch is given before the user's model is made, or what in it holds this parameter, where each rank has
    its own; None where it is the same on all ranks, or the source does not show the order."""
    program = program_of(sources)
    seeds = [call for file in program.files for call in file.nodes(ast.Call) if _seeds_torch(program, call)]
    for made in (*_holders(program, parameter), *_models(program)):
        before = [(place, call) for call in seeds if (place := _place_before(program, call, made)) is not None]
        if before:
            (*_, through), call = max(before, key=lambda one: one[0][:2])
            return _own_seed(program, call, through)
    return None


def _holders(program: UserProgram, parameter: str) -> Iterator[ast.Call]:
    """The calls of a class of the user's that makes a parameter of this name itself: `self.a = nn.Parameter(...)`."""
    leaf = parameter.rpartition(".")[2]
    for statement, value in program.stores(leaf, None) if leaf else ():
        name = program.scope_of(statement).class_name
        if isinstance(value, ast.Call) and last_word(value.func) == "Parameter" and name in program.classes:
            yield from (call for file in program.files for call in file.nodes(ast.Call) if last_word(call.func) == name)


def _seeds_torch(program: UserProgram, call: ast.Call) -> bool:
    """Whether a call seeds the default generator: not one of the user's functions, nor a generator's own method."""
    if last_word(call.func) not in _SEEDING_TORCH or program.targets(call):
        return False
    return dotted(call.func).partition(".")[0] in program.scope_of(call).file.imports


def _models(program: UserProgram) -> Iterator[ast.Call]:
    """The calls that make what is asked for its parameters; of a wrapped module the call that makes that one."""
    for file in program.files:
        for node in file.attributes:
            if node.attr in ("parameters", "named_parameters"):
                modules = [one for one in way_back(program, node.value) if _makes_module(program, one)]
                made = modules[-1] if modules else maker_of(program, node.value)
                if isinstance(made, ast.Call):
                    yield made


def _makes_module(program: UserProgram, value: ast.expr) -> bool:
    """Whether it is a call of a class of the user's, or of torch.nn."""
    if not isinstance(value, ast.Call):
        return False
    name = dotted(value.func)
    root = program.scope_of(value).file.imports.get(name.partition(".")[0], "")
    whole = ".".join(filter(None, (root, name.partition(".")[2])))
    return last_word(value.func) in program.classes or (whole.startswith("torch.nn.") and ".parallel" not in whole)


def _place_before(program: UserProgram, call: ast.Call, made: ast.Call) -> tuple[int, int, ast.AST] | None:
    """The line that leads to the seed in the nearest body from which both are reached, its own, and what leads to it, where that
    comes before the model is made there."""
    mine, theirs = _way(program, call), _way(program, made)
    shared = [scope for scope in mine.nodes if scope in theirs.nodes]
    if not shared:
        return None
    body = min(shared, key=lambda scope: mine.depth[scope] + theirs.depth[scope])
    leads, last = max(mine.nodes[body], key=lineno), min(map(lineno, theirs.nodes[body]))
    return (lineno(leads), lineno(call), leads) if lineno(leads) < last else None


def _way(program: UserProgram, node: ast.Call) -> Way:
    scope = program.scope_of(node)
    return way_to(program, scope.line(node)) or Way({}, {})


def _own_seed(program: UserProgram, call: ast.Call, through: ast.AST) -> InitialSeed | None:
    for value in (*call.args, *(word.value for word in call.keywords)):
        way = way_back(program, value)
        way += _given_by(program, way[-1], through)
        for steps, one in enumerate(way, 1):
            if _is_own(one):
                return InitialSeed(tuple(lines_of_way(program, (call, *way[:steps]))), _edits(program, call, one))
        raised = _raised_by_rank(program, call, value)
        if raised is not None:
            return InitialSeed(tuple(lines_of_way(program, (call, raised))))
    tests = [test for test in deciding_tests(program, call) if is_about_rank(test)]
    return InitialSeed(tuple(lines_of_way(program, (call, *tests[:1]))), only_where=True) if tests else None


def _given_by(program: UserProgram, value: ast.expr, through: ast.AST) -> list[ast.expr]:
    """What this call of several gives for a parameter, and what that was made of."""
    if not isinstance(value, ast.Name):
        return []
    inside = set(ast.walk(through))
    given = [one for one in program.arguments(program.scope_of(value), value.id) if one in inside]
    return way_back(program, given[0]) if len(given) == 1 else []


def _raised_by_rank(program: UserProgram, call: ast.Call, value: ast.expr) -> ast.AugAssign | None:
    """`args.seed += rank`, in the same body above the call."""
    written = ast.unparse(value)
    above = (
        one for one in program.scope_of(call).assigns if isinstance(one, ast.AugAssign) and one.lineno < call.lineno
    )
    return next((one for one in above if ast.unparse(one.target) == written and _is_own(one.value)), None)


def _is_own(value: ast.expr) -> bool:
    """Whether a number is made of the rank, or of what each process answers for itself."""
    calls = (last_word(node.func) for node in ast.walk(value) if isinstance(node, ast.Call))
    return is_about_rank(value) or any(name in _OF_A_PROCESS for name in calls)


def _edits(program: UserProgram, call: ast.Call, seed: ast.expr) -> tuple[Edit, ...]:
    """The rest of a sum that the rank is added to, or 0 for the rank alone, where it is given to what seeds."""
    above = program.parents[seed]
    above = program.parents[above] if isinstance(above, ast.keyword) else above
    if above is not call and program.scope_of(call) not in program.targets(above):
        return ()
    rest = _without_rank(seed)
    return (node_replaced(program.scope_of(seed).path, seed, rest),) if rest else ()


def _without_rank(seed: ast.expr) -> str:
    if isinstance(seed, ast.Name | ast.Attribute) or dotted(getattr(seed, "func", seed)).endswith("get_rank"):
        return "0"
    if isinstance(seed, ast.BinOp) and isinstance(seed.op, ast.Add):
        rest = [side for side in (seed.left, seed.right) if not _is_own(side)]
        return ast.unparse(rest[0]) if len(rest) == 1 else ""
    return ""
