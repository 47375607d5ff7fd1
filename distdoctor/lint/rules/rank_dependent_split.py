"""
DD313 rank-dependent-split: each rank splits the data its own way, so validation samples are trained on by other ranks.

What it means    random_split draws from the global random state, which is seeded with the rank, or not at all.
Why it hurts     What one rank validates on, another trains on; shards overlap, and samples go missing.
How we know      The split has no generator, and the seed before it contains the rank, or the script sets no seed.
What to do       Give the split a generator with one fixed seed: generator=torch.Generator().manual_seed(42).
When it is fine  One seed on all ranks before the split; a split that is read from disk.
Source           torch.utils.data.random_split: generator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, SourceFile, keyword, last_word, lineno
from distdoctor.lint.program import ParsedFiles
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
