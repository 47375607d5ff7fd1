"""Where the user's source deals out a stream by the number of its rank, and what puts it in order before that. Pure `ast`.

random.shuffle(order)
order = order[rank::world_size]          # or islice(lines, rank, None, world_size), number % world_size == rank,
                                         # split_dataset_by_node(stream, rank, world_size), range(rank, size, world_size)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.given_values import all_made_of, way_back
from distdoctor.diagnosis.source.rank_words import names_some_rank, names_world, words_of
from distdoctor.diagnosis.source.source_file import Scope, last_word, source_file
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_DEALERS = frozenset({"split_dataset_by_node", "split_by_node", "shard"})
SEEDING = frozenset({"Random", "RandomState", "default_rng", "SeedSequence", "seed", "manual_seed", "seed_everything"})
_OF_WORKERS = frozenset({"num_workers", "id"})  # of torch.utils.data.get_worker_info()
_SHUFFLES = frozenset({"shuffle", "permutation", "permuted", "randperm", "sample"})


@dataclass(frozen=True)
class StreamShare:
    """`dealt`: the line on which each rank takes its share. `shuffled`: what decides the order before it; no line: not seen.
    `by_rank`: what is dealt out was shuffled by a generator that is seeded there with the number of the rank."""

    dealt: SourceLine
    shuffled: SourceLine
    by_rank: bool = False


def stream_share(sources: Mapping[str, str], dataset: str, made: SourceLine) -> StreamShare | None:
    """The share that a rank takes of iterable data: in the class `dataset`, else in the function that makes the loader, else in
    what the loader is given, wherever that is made."""
    program, of_class, around = program_of(sources), [], []
    for path in sources:
        file = source_file(sources, path)
        for scope in file.scopes if file is not None else ():
            if dataset in (scope.class_name, scope.of_class):
                of_class.append(scope)
            elif path == made.path and scope.traceback_name == made.function:
                around.append(scope)
    for scope in (*of_class, *around):
        for node in _dealt_in(program, scope):
            if scope in around and _goes_elsewhere(program, scope, node, made):
                continue
            return _share_of(program, scope, node)
    for scope in around:
        for given in _given_to(scope, made):
            for value in _through_methods(program, given):
                if deals(program, value):
                    return _share_of(program, program.scope_of(value), value)
    return None


def _through_methods(program: UserProgram, value: ast.expr) -> Iterator[ast.expr]:
    """All that a value was made of, also through the methods of what it was made of: of `stream.shuffle().batch(8)` `stream`."""
    seen, waiting = set[ast.expr](), [value]
    for start in waiting:
        for one in all_made_of(program, start):
            if one not in seen:
                seen.add(one)
                yield one
                if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
                    waiting.append(one.func.value)


def _share_of(program: UserProgram, scope: Scope, dealt: ast.expr) -> StreamShare:
    shuffle = _shuffle_above(scope, dealt)
    if shuffle is None:
        return StreamShare(scope.line(dealt), SourceLine())
    by_rank = _shuffles_it(scope, shuffle, dealt) and _is_seeded_by_rank(program, shuffle)
    return StreamShare(scope.line(dealt), scope.line(shuffle), by_rank)


def _given_to(scope: Scope, made: SourceLine) -> list[ast.expr]:
    """What the loader that is made on this line is given."""
    loaders = [call for call in scope.calls if last_word(call.func).endswith("Loader")]
    own = [call for call in loaders if call.lineno <= made.line <= (call.end_lineno or call.lineno)]
    return [value for call in own for value in (*call.args, *(word.value for word in call.keywords))]


def _goes_elsewhere(program: UserProgram, scope: Scope, dealt: ast.expr, made: SourceLine) -> bool:
    """Whether what is dealt out in the function that makes a loader is nothing that this loader is given."""
    given = _given_to(scope, made)
    made_of = (one for value in given for one in all_made_of(program, value, through_objects=True))
    return bool(given) and not any(dealt is node for one in made_of for node in ast.walk(one))


def is_told_the_world(sources: Mapping[str, str], dataset: str) -> bool:
    """Whether data of this class are made with a number of ranks: they are to be dealt out."""
    makers = program_of(sources).methods({dataset}, "__init__")
    return any(names_world(name) for scope in makers for name in scope.parameters)


def is_told_its_share(sources: Mapping[str, str], dataset: str) -> bool:
    """Whether all data of this class are handed a number of ranks, or a rank, that is none of the process's own: `world=1`."""
    program = program_of(sources)
    makers = program.methods({dataset}, "__init__")
    calls = [call for file in program.files for call in file.nodes(ast.Call) if last_word(call.func) == dataset]
    told = {
        id(value)
        for scope in makers
        for name in scope.parameters
        if names_some_rank(name) or names_world(name)
        for value in program.arguments(scope, name)
        if isinstance(value, ast.Constant) and value.value is not None
    }
    return bool(calls) and all(
        told & {id(value) for value in (*call.args, *(word.value for word in call.keywords))} for call in calls
    )


def share_of_data(sources: Mapping[str, str], dataset: str) -> SourceLine:
    """Where a rank takes its share of the samples of data of the class `dataset`; no line where the source shows none.

    Only what their length is measured of counts, or, for a class whose source is not there, what they are given: the number of
    the rank may stand beside whole data.
    """
    program = program_of(sources)
    measured = [one for scope in program.methods({dataset}, "__len__") for one in program.returned(scope)]
    calls = [call for file in program.files for call in file.nodes(ast.Call) if last_word(call.func) == dataset]
    given = [value for call in calls for value in (*call.args, *(word.value for word in call.keywords))]
    for value in measured or given:
        for one in (node for step in all_made_of(program, value, through_objects=True) for node in ast.walk(step)):
            if deals(program, one):
                return program.scope_of(one).line(one)
    return SourceLine()


def dealt_by(sources: Mapping[str, str], sampler: str) -> SourceLine:
    """Where a class of the user's takes a rank's share; no line where none of its methods does."""
    program = program_of(sources)
    for file in program.files:
        for scope in file.scopes:
            for node in _dealt_in(program, scope) if scope.of_class == sampler else ():
                return scope.line(node)
    return SourceLine()


def _dealt_in(program: UserProgram, scope: Scope) -> Iterator[ast.expr]:
    for node in scope.file.nodes(ast.Subscript, ast.Compare, ast.Call):
        if scope.file.scope_of.get(node) is scope and deals(program, node):
            yield node


def deals(program: UserProgram, node: ast.AST) -> bool:
    """Whether an expression picks one of so many shares by the number of the rank."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return _is_share(program, node.slice.lower, node.slice.step)
    if isinstance(node, ast.Compare) and isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mod):
        return _is_share(program, node.comparators[0], node.left.right)
    if not isinstance(node, ast.Call):
        return False
    name, given = last_word(node.func), (*node.args, *(word.value for word in node.keywords))
    if (name, len(node.args)) in (("islice", 4), ("range", 3)):
        return _is_share(program, node.args[-3], node.args[-1])
    return name in _DEALERS and any(map(_speaks_of_rank, given)) and any(map(speaks_of_world, given))


def shares_without_rank(sources: Mapping[str, str]) -> list[tuple[SourceLine, str]]:
    """Where every so many of something are taken, as many as there are ranks, and the first does not follow from the number of
    the rank: `rows[::world_size]`, `range(0, len(rows), nranks)`. All ranks take the same ones there."""
    program = program_of(sources)
    found = []
    for file in program.files:
        for node in file.nodes(ast.Subscript, ast.Call):
            bounds = _bounds(node)
            if bounds is None or not any(map(speaks_of_world, way_back(program, bounds[1]))):
                continue
            if bounds[0] is None or not any(map(_speaks_of_rank, way_back(program, bounds[0]))):
                found.append((program.scope_of(node).line(node), ast.unparse(node)))
    return found


def shared_by_workers(sources: Mapping[str, str], dataset: str) -> list[tuple[SourceLine, str]]:
    """Where data of a class are dealt out to the workers of a loader alone: `shards[info.id :: info.num_workers]`."""
    program = program_of(sources)
    found = []
    for scope in program.scopes.values():
        if dataset not in (scope.class_name, scope.of_class):
            continue
        for node in program.inside(scope):
            bounds = _bounds(node)
            parts = [one for bound in bounds or () if bound is not None for one in way_back(program, bound)]
            asked = {one.attr for part in parts for one in ast.walk(part) if isinstance(one, ast.Attribute)}
            if asked & _OF_WORKERS and not any(_speaks_of_rank(part) or speaks_of_world(part) for part in parts):
                found.append((scope.line(node), ast.unparse(node)))
    return found


def _bounds(node: ast.AST) -> tuple[ast.expr | None, ast.expr] | None:
    """(where it begins, None: at the front; the step) of what goes through something by steps."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.step is not None:
        return node.slice.lower, node.slice.step
    if isinstance(node, ast.Call) and (last_word(node.func), len(node.args)) in (("islice", 4), ("range", 3)):
        return node.args[-3], node.args[-1]
    return None


def _is_share(program: UserProgram, number: ast.expr | None, of: ast.expr | None) -> bool:
    """Whether a number comes from that of the rank, and another one from how many there are."""
    if number is None or of is None:
        return False
    return any(map(_speaks_of_rank, all_made_of(program, number))) and any(
        map(speaks_of_world, all_made_of(program, of))
    )


def _speaks_of_rank(node: ast.expr) -> bool:
    return any(names_some_rank(word) or word in ("get_rank", "process_index") for word in words_of(node))


def speaks_of_world(node: ast.expr) -> bool:
    return any(map(names_world, words_of(node)))


def _shuffle_above(scope: Scope, dealt: ast.expr) -> ast.Call | None:
    """The last call before the share that shuffles, in the same function. What Hugging Face's datasets have dealt out is shuffled
    before, wherever that is asked."""
    first = isinstance(dealt, ast.Call) and last_word(dealt.func) == "split_dataset_by_node"
    shuffles = [call for call in scope.calls if last_word(call.func) in _SHUFFLES]
    above = [call for call in shuffles if first or call.lineno <= dealt.lineno]
    return max(above, key=lambda call: call.lineno, default=None)


def _shuffles_it(scope: Scope, shuffle: ast.Call, dealt: ast.expr) -> bool:
    """Whether what is dealt out bears a name of what is shuffled: given to the shuffle, or made by its statement."""
    statement = scope.file.statement(shuffle)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    owner = [shuffle.func.value] if isinstance(shuffle.func, ast.Attribute) else []
    shuffled = {*map(ast.unparse, (*shuffle.args, *targets, *owner))}
    return any(ast.unparse(one) in shuffled for one in ast.walk(dealt) if isinstance(one, ast.Name | ast.Attribute))


def _is_seeded_by_rank(program: UserProgram, shuffle: ast.Call) -> bool:
    """`random.Random(seed + rank).shuffle(order)`, or `stream.shuffle(seed=seed + rank)`; also where the generator has a name, or
    is given (`generator=`), or a function that makes it is given the rank."""
    made = [shuffle.func.value] if isinstance(shuffle.func, ast.Attribute) else []
    made += [word.value for word in shuffle.keywords if word.arg == "generator"]
    calls = [
        one
        for value in made
        for step in way_back(program, value)
        for one in ast.walk(step)
        if isinstance(one, ast.Call)
    ]
    makers = [value for value in made if isinstance(value, ast.Call)]
    made_for = [value for value in makers if any(last_word(one.func) in SEEDING for one in calls if one is not value)]
    seeds = [seed for one in calls if one in made_for or last_word(one.func) in SEEDING for seed in one.args]
    seeds += [word.value for word in shuffle.keywords if word.arg == "seed"]
    return any(_speaks_of_rank(step) for seed in seeds for step in way_back(program, seed))
