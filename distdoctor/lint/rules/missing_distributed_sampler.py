"""
DD304 missing-distributed-sampler: every rank reads the whole dataset.

What it means    The training loader of a DDP script shuffles the whole dataset on every rank; nothing gives each rank its shard.
Why it hurts     With N ranks an epoch takes N times as long, and each sample is trained on N times.
How we know      The file wraps a model in DDP, and the loader of its training loop has shuffle=True, no sampler and a dataset
                 that was not sharded by rank.
What to do       DataLoader(dataset, sampler=DistributedSampler(dataset)), and set_epoch in each epoch.
When it is fine  A library distributes the batches; the dataset is sharded by rank.
Source           torch.utils.data.distributed.DistributedSampler.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Loop, Scope, is_constant, keyword, opaque
from distdoctor.lint.program import DDP, LOADER, Made, ParsedFiles
from distdoctor.lint.rank_conditions import mentions_rank
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import trains

_SHARDING = ("parallelize_module", "split_dataset_by_node", "webdataset", "process_index", "mp.Queue")


@rule("DD304", "missing-distributed-sampler", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    told: set[ast.Call] = set()
    for scope in program.scopes:
        for loop in scope.loops:
            loader = _whole_loader(loop, scope, program)
            if loader is None or loader.call in told or not _in_ddp_script(loader, scope, program):
                continue
            if not trains(loop, scope, program):
                continue
            told.add(loader.call)
            yield Sighting(
                node=loader.call,
                scope=loader.scope,
                title="every rank reads the whole dataset: the training loader has no DistributedSampler",
                why="shuffle=True draws from all samples on every rank, and nothing shards them",
                remedy="distributed-sampler",
                also=((loop, scope, "trains on it"),),
            )


def _whole_loader(loop: Loop, scope: Scope, program: ParsedFiles) -> Made | None:
    if isinstance(loop, ast.While):
        return None
    iterated = loop.iter
    while isinstance(iterated, ast.Call) and iterated.args and not program.kind_of_call(iterated, scope.file):
        iterated = iterated.args[0]
    made = [one for one in program.made(iterated, scope) if one.kind == LOADER]
    if len(made) != 1 or opaque(made[0].call) or not is_constant(keyword(made[0].call, "shuffle"), True):
        return None
    loader = made[0]
    taken = keyword(loader.call, "sampler") or keyword(loader.call, "batch_sampler")
    sharded = any(mentions_rank(one, loader.scope, program) for one in loader.call.args)
    return None if taken is not None or sharded else loader


def _in_ddp_script(loader: Made, scope: Scope, program: ParsedFiles) -> bool:
    """Whether a model is wrapped in DDP around here, unconditionally, and nobody else deals out the data."""
    for where in {loader.scope, scope}:
        text = where.file.text
        if program.cared_for(where.file) or any(word in text for word in _SHARDING):
            return False
    wrapping = [
        one for f in {scope.file, loader.scope.file} for one in f.scopes for c in one.calls if _wraps(c, one, program)
    ]
    return bool(wrapping)


def _wraps(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    return program.kind_of_call(call, scope.file) == DDP


SICK = """
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
def run(data, net, optimizer):
    model = DistributedDataParallel(net)
    loader = DataLoader(data, shuffle=True)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""
HEALTHY = """
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
def run(data, net, optimizer):
    model = DistributedDataParallel(net)
    loader = DataLoader(data, sampler=DistributedSampler(data))
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""
