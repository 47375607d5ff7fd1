"""
DD312 sampler-and-shuffle: sampler= and shuffle=True exclude each other, and set_epoch does nothing without shuffling.

What it means    The sampler decides the order; a DataLoader refuses both. A sampler with shuffle=False ignores its epoch.
Why it hurts     The first raises ValueError at startup. The second looks like shuffling, but nothing is shuffled.
How we know      Both arguments appear in one call; set_epoch is called on a sampler that was made with shuffle=False.
What to do       Leave shuffle out of the DataLoader and shuffle in the sampler.
When it is fine  The sampler may be None there; shuffle=False for evaluation.
Source           torch.utils.data.DataLoader: "sampler option is mutually exclusive with shuffle".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR, NOTE
from distdoctor.diagnosis.source.source_file import Scope, argument, is_constant, keyword
from distdoctor.lint.program import LOADER, SAMPLER, ParsedFiles
from distdoctor.lint.rule import Sighting, replace_node, rule
from distdoctor.lint.training import method_calls


@rule("DD312", "sampler-and-shuffle", severity=NOTE)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if program.kind_of_call(call, scope.file) == LOADER:
                yield from _both(call, scope, program)
        for call in method_calls(scope, "set_epoch"):
            yield from _without_effect(call, scope, program)


def _both(call: ast.Call, scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    sampler, shuffle = argument(call, 3, "sampler"), keyword(call, "shuffle")
    made = [one.kind for one in program.made(sampler, scope)]
    if not is_constant(shuffle, True) or SAMPLER not in made or _may_be_none(sampler, scope, program):
        return
    assert shuffle is not None
    yield Sighting(
        node=call,
        scope=scope,
        title="the DataLoader is given both sampler= and shuffle=True and refuses them",
        why="ValueError: sampler option is mutually exclusive with shuffle; DistributedSampler shuffles by default",
        remedy="shuffle-in-the-sampler",
        severity=ERROR,
        edits=(replace_node(shuffle, scope, "False"),),
    )


def _may_be_none(node: ast.expr | None, scope: Scope, program: ParsedFiles) -> bool:
    if isinstance(node, ast.IfExp):
        return True
    name = node.id if isinstance(node, ast.Name) else ""
    bound = program.bindings(name, scope) if name else []
    return any(not isinstance(binding.value, ast.Call) for binding, _ in bound) or name in scope.parameters


def _without_effect(call: ast.Call, scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    assert isinstance(call.func, ast.Attribute)
    samplers = [one for one in program.made(call.func.value, scope) if one.kind == SAMPLER]
    if samplers and all(is_constant(argument(one.call, 3, "shuffle"), False) for one in samplers):
        yield Sighting(
            node=call,
            scope=scope,
            title="set_epoch has no effect: this sampler was made with shuffle=False",
            why="DistributedSampler reads its epoch only to shuffle",
            remedy="shuffle-in-the-sampler",
            also=((samplers[0].call, samplers[0].scope, "makes the sampler"),),
        )


SICK = """
from torch.utils.data import DataLoader, DistributedSampler
def loader(data):
    return DataLoader(data, shuffle=True, sampler=DistributedSampler(data))
"""
HEALTHY = """
from torch.utils.data import DataLoader, DistributedSampler
def loader(data):
    return DataLoader(data, sampler=DistributedSampler(data))
"""
