"""
DD313 rank-dependent-split: each rank splits the data its own way, so validation samples are trained on by other ranks.

What it means    random_split draws from the global random state, which is seeded with the rank, or not at all. Or the samples
                 of a dataset are shuffled by that state as it is made.
Why it hurts     What one rank validates on, another trains on; shards overlap, and samples go missing.
How we know      The split has no generator, and the seed before it contains the rank, or the script sets no seed. A dataset
                 that shuffles is told, as a warning, if a DistributedSampler or Hugging Face's Trainer deals out its samples by
                 number, and no call that speaks of a seed can come before the dataset is made.
What to do       Give the split a generator with one fixed seed: generator=torch.Generator().manual_seed(42).
When it is fine  One seed on all ranks before the split or the dataset; a split that is read from disk.
Source           torch.utils.data.random_split: generator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, POSSIBLE, WARNING
from distdoctor.diagnosis.source.own_orders import seeds_default, shuffles_by_default
from distdoctor.diagnosis.source.source_file import Scope, SourceFile, dotted, keyword, last_word, lineno
from distdoctor.lint.course import MOST_FUNCTIONS, Course, Event, starts
from distdoctor.lint.program import SAMPLER, ParsedFiles
from distdoctor.lint.rank_conditions import mentions_rank
from distdoctor.lint.rule import Sighting, rule

_SPLITS = {"random_split": "generator", "train_test_split": "random_state"}


@rule("DD313", "rank-dependent-split", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            argument = _SPLITS.get(last_word(call.func))
            if argument is None or keyword(call, argument) is not None or program.cared_for(scope.file):
                continue
            if len(call.args) > 2:
                continue
            seeds = _seeds(scope, program)
            by_rank = [one for one, where in seeds if mentions_rank(one, where, program) and one is not call]
            if by_rank or (not seeds and any(program.is_distributed(file) for file in _around(scope, program))):
                why = f"the seed on line {lineno(by_rank[0])} contains the rank" if by_rank else "no seed is set"
                yield _sighting(call, scope, why, argument)
    yield from _shuffled_datasets(program)


def _shuffled_datasets(program: ParsedFiles) -> Iterator[Sighting]:
    """Map-style data that are shuffled, as they are made, by a default generator that nobody can have seeded by then."""
    for call, scope, name in (*_in_constructors(program), *_before_constructors(program)):
        if not _shares(scope) and _is_dealt_out_unseeded(name, program):
            yield _shuffle_sighting(call, scope, name)


def _in_constructors(program: ParsedFiles) -> Iterator[tuple[ast.Call, Scope, str]]:
    """(the only shuffle in a constructor, its body, the class of data)."""
    for file in program.files:
        for name in _data_classes(file):
            for scope in _constructor(file, name):
                calls = [call for call in scope.calls if shuffles_by_default(call, file)]
                if len(calls) == 1:
                    yield calls[0], scope, name


def _before_constructors(program: ParsedFiles) -> Iterator[tuple[ast.Call, Scope, str]]:
    """The same of what is shuffled in the body that gives it to the constructor."""
    names = {name for file in program.files for name in _data_classes(file)} | {"TensorDataset", "Subset"}
    for scope in program.scopes:
        shuffles = [call for call in scope.calls if shuffles_by_default(call, scope.file)]
        for made in (one for one in scope.calls if shuffles and last_word(one.func) in names):
            given = {ast.unparse(one) for value in made.args for one in ast.walk(value) if isinstance(one, ast.Name)}
            for call in shuffles:
                if lineno(call) <= lineno(made) and given & _shuffled(call, scope.file):
                    yield call, scope, last_word(made.func)


def _shuffled(call: ast.Call, file: SourceFile) -> set[str]:
    """The names of what a call leaves in another order: its argument, or what its value is bound to."""
    if last_word(call.func) == "shuffle":
        return {ast.unparse(one) for one in call.args[:1]}
    statement = file.statement(call)
    return {ast.unparse(one) for one in statement.targets} if isinstance(statement, ast.Assign) else set()


def _data_classes(file: SourceFile) -> list[str]:
    """The classes of map-style data that a file defines."""
    words = {name: [last_word(base) for base in bases] for name, bases in file.bases.items()}
    return [n for n, bases in words.items() if any(b.endswith("Dataset") and "Iterable" not in b for b in bases)]


def _deals_by_number(file: SourceFile, program: ParsedFiles) -> bool:
    """Whether the file gives loaders shares of the samples, by torch's sampler or by a Trainer in a job of several ranks."""
    calls = [call for scope in file.scopes for call in scope.calls]
    if any(program.kind_of_call(call, file) == SAMPLER for call in calls):
        return True
    trains = any(program.meaning(call.func, file) == "transformers.Trainer" for call in calls)
    return trains and any(name.startswith("torch.distributed") for name in file.imports.values())


def _constructor(file: SourceFile, name: str) -> list[Scope]:
    """The constructor of a class, and the methods of the class that it calls."""
    methods = file.classes.get(name, {})
    found = [methods["__init__"]] if "__init__" in methods else []
    for scope in found:
        called = (methods.get(dotted(call.func).removeprefix("self.")) for call in scope.calls)
        found += [one for one in called if one is not None and one not in found]
    return found


def _shares(scope: Scope) -> bool:
    """Whether a function hands on what one rank has found, or asks which rank it is: then it may shuffle as it likes."""
    words = {last_word(call.func) for call in scope.calls}
    return any("broadcast" in word or "scatter" in word or word == "get_rank" for word in words)


def _is_dealt_out_unseeded(name: str, program: ParsedFiles) -> bool:
    """Whether such data are made and sharded in the program, and every call of it that speaks of a seed comes after that."""
    making = [scope for scope in program.scopes if any(last_word(call.func) == name for call in scope.calls)]
    begins = {one for scope in making for one in starts(scope, program, MOST_FUNCTIONS) if not program.callers(one)}
    if not any(_deals_by_number(file, program) for file in {scope.file for scope in (*making, *begins)}):
        return False
    course = Course(program, lambda call, _: last_word(call.func) == name or seeds_default(call))
    seeds = {call for scope in program.scopes for call in scope.calls if seeds_default(call)}
    return bool(begins) and all(_is_made_before(name, seeds, course.of(start)) for start in begins)


def _is_made_before(name: str, seeds: set[ast.Call], events: list[Event]) -> bool:
    """Whether data of this name are made in a course of events, all of them before each of these seeds."""
    made = [event for event in events if last_word(event.call.func) == name]
    later = {event.call for event in events if all(one.before(event) for one in made)}
    return bool(made) and not seeds - later


def _shuffle_sighting(call: ast.Call, scope: Scope, name: str) -> Sighting:
    generator = shuffles_by_default(call, scope.file)
    optional = any(isinstance(one, ast.If | ast.IfExp) for one, _ in scope.file.enclosing(call))
    return Sighting(
        node=call,
        scope=scope,
        title=f"each rank makes {name} in an order of its own: {dotted(call.func)} draws from {generator}'s default generator",
        why="nothing seeds it before, and the sampler deals out samples by number: the ranks' shares overlap",
        remedy="same-order-everywhere",
        change="shuffle by a generator with one seed for all ranks",
        severity=NOTE if optional else WARNING,
        confidence=POSSIBLE if optional else LIKELY,
    )


def _around(scope: Scope, program: ParsedFiles) -> list[SourceFile]:
    """The file itself and those that call into it."""
    return [scope.file, *(site.scope.file for site in program.callers(scope))]


def _seeds(scope: Scope, program: ParsedFiles) -> list[tuple[ast.Call, Scope]]:
    """The calls that set a seed: in this file, or in a file of the program that calls the function with the split."""
    files = set(_around(scope, program))
    return [(c, one) for f in files for one in f.scopes for c in one.calls if "seed" in last_word(c.func).lower()]


def _sighting(call: ast.Call, scope: Scope, why: str, argument: str) -> Sighting:
    return Sighting(
        node=call,
        scope=scope,
        title=f"each rank splits the data differently: {last_word(call.func)} has no {argument}",
        why=f"{why}, so what one rank holds out, another trains on",
        remedy="same-split-everywhere",
        change="generator=torch.Generator().manual_seed(42)" if argument == "generator" else "random_state=42",
    )


SICK = """
import torch
from torch.nn.parallel import DistributedDataParallel
def run(data, net):
    train, held_out = torch.utils.data.random_split(data, [0.9, 0.1])
    return DistributedDataParallel(net), train, held_out
"""
HEALTHY = """
import torch
from torch.nn.parallel import DistributedDataParallel
def run(data, net):
    same = torch.Generator().manual_seed(1)
    train, held_out = torch.utils.data.random_split(data, [0.9, 0.1], generator=same)
    return DistributedDataParallel(net), train, held_out
"""
