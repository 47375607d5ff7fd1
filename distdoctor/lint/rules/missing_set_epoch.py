"""
DD301 missing-set-epoch: every epoch has the same order, because set_epoch is never called.

What it means    DistributedSampler shuffles with seed + epoch. Without set_epoch(epoch) every epoch repeats epoch 0.
Why it hurts     The model sees one fixed order; validation looks fine, generalization quietly suffers.
How we know      A loader with a shuffling DistributedSampler is iterated in an epoch loop, without end by a generator, or anew
                 when it ends (except StopIteration) in a program that trains, and set_epoch is called nowhere in the files that
                 create and iterate it, or only on other samplers. Where the program's settings or a default say whether it
                 shuffles, the loop has to be one that trains.
What to do       Call sampler.set_epoch(epoch) at the top of the epoch loop.
When it is fine  shuffle=False, a single epoch, an evaluation, a library that sets it (accelerate, Lightning).
Source           torch.utils.data.distributed.DistributedSampler, the warning on set_epoch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.source_file import (
    Loop,
    Scope,
    SourceFile,
    argument,
    dotted,
    is_constant,
    last_word,
    lineno,
    within,
)
from distdoctor.lint.program import LOADER, SAMPLER, Made, ParsedFiles, given_for
from distdoctor.lint.rule import Sighting, insert_before, rule
from distdoctor.lint.training import backwards, method_calls, trains, without_gradients


@rule("DD301", "missing-set-epoch", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    told: set[ast.Call] = set()
    for scope in program.scopes:
        if program.epochs_are_set(scope.file) or not any(words in scope.file.text for words in ("epoch", "while True")):
            continue
        for loop in scope.loops:
            if isinstance(loop, ast.While):
                continue
            loader = _loader_expression(loop.iter, scope, program)
            sampler = _shuffling_sampler(loader, scope, program, learns=_learns(loop, scope, program))
            epochs = _epoch_loop(loop, scope, program) if sampler else None
            if (
                sampler is None
                or epochs is None
                or sampler.call in told
                or _is_told(sampler, scope, epochs[1], program)
            ):
                continue
            if _evaluates(loop, scope, program):
                continue
            told.add(sampler.call)
            yield _sighting(loop, loader, scope, sampler, epochs, program)
    for scope in program.scopes:
        if program.epochs_are_set(scope.file) or "StopIteration" not in scope.file.text:
            continue
        for handler, call in _begun_anew(scope):
            learns = any(backwards(one) for one in scope.file.scopes)
            sampler = _shuffling_sampler(call.args[0], scope, program, learns=learns) if learns else None
            if sampler is None or sampler.call in told or _is_told(sampler, scope, scope, program):
                continue
            told.add(sampler.call)
            yield _sighting_anew(handler, call, scope, sampler, program)


def _begun_anew(scope: Scope) -> Iterator[tuple[ast.ExceptHandler, ast.Call]]:
    """`except StopIteration: batches = iter(loader)`: where an epoch ends that no loop counts, and that call."""
    for handler in ast.walk(scope.node):
        if not isinstance(handler, ast.ExceptHandler) or last_word(handler.type) != "StopIteration":
            continue
        for call in (one for one in scope.calls if within(handler, one, scope.file)):
            evaluates = any(word in ast.unparse(call).lower() for word in ("val", "test"))
            if dotted(call.func) == "iter" and len(call.args) == 1 and not evaluates:
                yield handler, call


def _sighting_anew(
    handler: ast.ExceptHandler, call: ast.Call, scope: Scope, sampler: Made, program: ParsedFiles
) -> Sighting:
    counted = [
        one.target for one in ast.walk(handler) if isinstance(one, ast.AugAssign) and "epoch" in dotted(one.target)
    ]
    return Sighting(
        node=call,
        scope=scope,
        title=f"the sampler draws the same order in every epoch{_where(sampler, program)}: set_epoch is never called",
        why="the loader is iterated anew whenever it ends; DistributedSampler shuffles with seed + epoch, and the epoch stays 0",
        remedy="set-epoch",
        change=f"{dotted(call.args[0]) or 'loader'}.sampler.set_epoch({ast.unparse(counted[0]) if counted else 'epoch'})  "
        "# before iter()",
        also=((sampler.call, sampler.scope, "makes the sampler"),),
    )


def _sighting(
    loop: ast.For | ast.AsyncFor,
    loader: ast.expr,
    scope: Scope,
    sampler: Made,
    epochs: tuple[Loop, Scope],
    program: ParsedFiles,
) -> Sighting:
    elsewhere = "set_epoch" in scope.file.text + sampler.scope.file.text + epochs[1].file.text
    outer, where = epochs
    named = f"{dotted(loader)}.sampler" if dotted(loader) else ""
    if isinstance(loader, ast.Call):  # made in the loop's own line: its sampler alone may have a name
        named = dotted(argument(loader, 3, "sampler") or loader)
    counter = outer.target.id if isinstance(outer, ast.For) and isinstance(outer.target, ast.Name) else "epoch"
    call = f"{named or 'loader.sampler'}.set_epoch({counter})"
    loaders = [one for one in program.made(loader, scope) if one.kind == LOADER]  # several: not all have such a sampler
    fixable = bool(named) and where is scope and isinstance(outer, ast.For) and isinstance(outer.target, ast.Name)
    return Sighting(
        node=loop,
        scope=scope,
        title=f"the sampler draws the same order in every epoch{_where(sampler, program)}: set_epoch is never called"
        + (" on it" if elsewhere else ""),
        why="DistributedSampler shuffles with seed + epoch, and the epoch stays 0",
        remedy="set-epoch",
        change=call,
        also=((sampler.call, sampler.scope, "makes the sampler"), (outer, where, "the epoch loop")),
        edits=(insert_before(outer.body[0], scope, call),) if fixable and len(loaders) == 1 else (),
    )


def _where(sampler: Made, program: ParsedFiles) -> str:
    """In which settings it does."""
    shuffle = _shuffle(sampler, None, program)
    return f" where {ast.unparse(shuffle)} is true" if shuffle is not None and _is_setting(shuffle) else ""


def _loader_expression(iterated: ast.expr, scope: Scope, program: ParsedFiles) -> ast.expr:
    """What is iterated, through `enumerate` and `tqdm`."""
    while isinstance(iterated, ast.Call) and iterated.args and not program.kind_of_call(iterated, scope.file):
        iterated = iterated.args[0]
    return iterated


def _shuffling_sampler(iterated: ast.expr, scope: Scope, program: ParsedFiles, *, learns: bool) -> Made | None:
    """The DistributedSampler behind a loader; None when it does not shuffle. `learns`: what it deals out trains."""
    for loader in program.made(iterated, scope):
        if loader.kind != LOADER:
            continue
        given = argument(loader.call, 3, "sampler")
        for sampler in program.made(given, loader.scope):
            if sampler.kind != SAMPLER:
                continue
            shuffle = _shuffle(sampler, given, program)
            if is_constant(shuffle, True):
                return sampler
            if learns and (_is_setting(shuffle) or _by_default(sampler, program)):
                return sampler
    return None


def _shuffle(sampler: Made, given: ast.expr | None, program: ParsedFiles) -> ast.expr | None:
    """What says whether it shuffles: by default `True`, and where a function makes it, what the call `given` says. None: it does
    not, or depends on who calls."""
    shuffle = argument(sampler.call, 3, "shuffle")
    if shuffle is None:
        return ast.Constant(True)
    if not isinstance(shuffle, ast.Name):
        return shuffle
    if isinstance(given, ast.Call) and program.target(given, sampler.scope) is sampler.scope:
        return given_for(given, sampler.scope, shuffle.id)
    if shuffle.id in sampler.scope.parameters:
        return None
    bound = sampler.scope.bindings.get(shuffle.id, [])
    return bound[0].value if len(bound) == 1 else None


def _by_default(sampler: Made, program: ParsedFiles) -> bool:
    """Whether the function that makes the sampler shuffles where its caller does not say, and some caller does not."""
    shuffle = argument(sampler.call, 3, "shuffle")
    if not isinstance(shuffle, ast.Name) or not is_constant(sampler.scope.default_of(shuffle.id), True):
        return False
    given = [given_for(site.call, sampler.scope, shuffle.id) for site in program.callers(sampler.scope)]
    return not given or any(one is None or is_constant(one, True) for one in given)


def _is_setting(shuffle: ast.expr | None) -> bool:
    """`options["shuffle"]`, `args.shuffle`, `config.get("shuffle", True)`: on, or there would be no such setting."""
    if isinstance(shuffle, ast.Call):
        return last_word(shuffle.func) == "get" and "shuffle" in " ".join(map(ast.unparse, shuffle.args[:1])).lower()
    if isinstance(shuffle, ast.Subscript):
        return isinstance(shuffle.slice, ast.Constant) and "shuffle" in str(shuffle.slice.value).lower()
    return isinstance(shuffle, ast.Attribute) and "shuffle" in shuffle.attr.lower()


def _learns(loop: Loop, scope: Scope, program: ParsedFiles) -> bool:
    """Whether a loop trains, by what it does or by the names of what it calls."""
    words = {last_word(call.func).lower() for call in scope.calls if within(loop, call, scope.file)}
    return trains(loop, scope, program) or any("optimi" in word or "train" in word for word in words)


def _evaluates(loop: Loop, scope: Scope, program: ParsedFiles) -> bool:
    """Whether the loop learns nothing: an evaluation may see the same order each time."""
    asked = any(lineno(call) < lineno(loop) or within(loop, call, scope.file) for call in method_calls(scope, "eval"))
    return (asked or without_gradients(loop, scope)) and not trains(loop, scope, program)


def _epoch_loop(loop: Loop, scope: Scope, program: ParsedFiles) -> tuple[Loop, Scope] | None:
    """The loop over epochs around a loop over batches: here, or where this function is called."""
    for outer in scope.file.loops_around(loop):
        if _counts(outer) or _is_endless(outer, loop):
            return outer, scope
    for site in program.callers(scope):
        for outer in site.scope.file.loops_around(site.call):
            if _counts(outer) or (isinstance(outer, ast.While) and "epoch" in scope.name.lower()):
                return outer, site.scope
    return None


def _counts(loop: Loop) -> bool:
    text = ast.unparse(loop.test if isinstance(loop, ast.While) else ast.Tuple([loop.target, loop.iter], ast.Load()))
    return "epoch" in text.lower()


def _is_endless(outer: Loop, loop: Loop) -> bool:
    """`while True: for batch in loader: yield batch`, from which the training takes as many batches as it makes steps."""
    endless = isinstance(outer, ast.While) and is_constant(outer.test, True)
    return endless and any(isinstance(one, ast.Yield) for one in ast.walk(loop))


def _is_told(sampler: Made, scope: Scope, epochs: Scope, program: ParsedFiles) -> bool:
    """Whether a set_epoch is for this sampler, or may be: nobody can say what it is called on."""
    near = dict.fromkeys(
        [sampler.scope.file, scope.file, epochs.file, *(site.scope.file for site in program.callers(epochs))]
    )
    # a callback is handed in by whoever starts the loop
    near |= dict.fromkeys(other for file in near for other in program.imported_by(file))
    return any("set_epoch" in file.text and _may_tell(file, sampler, program) for file in near)


def _may_tell(file: SourceFile, sampler: Made, program: ParsedFiles) -> bool:
    calls = [(call, where) for where in file.scopes for call in method_calls(where, "set_epoch")]
    for call, where in calls:
        assert isinstance(call.func, ast.Attribute)
        on = {one.call for one in program.made(call.func.value, where) if one.kind == SAMPLER}
        if not on or sampler.call in on:
            return True
    return len(calls) < sum("set_epoch" in line.partition("#")[0] for line in file.text.splitlines())


SICK = """
from torch.utils.data import DataLoader, DistributedSampler
def run(data):
    loader = DataLoader(data, sampler=DistributedSampler(data))
    for epoch in range(3):
        for batch in loader:
            print(batch)
"""
HEALTHY = """
from torch.utils.data import DataLoader, DistributedSampler
def run(data):
    loader = DataLoader(data, sampler=DistributedSampler(data))
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            print(batch)
"""
