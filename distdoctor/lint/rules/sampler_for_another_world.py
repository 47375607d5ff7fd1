"""
DD311 sampler-for-another-world: the sampler's num_replicas and rank are not the job's.

What it means    DistributedSampler splits the data into num_replicas shards. A constant rank gives every process the same shard;
                 the GPU count of one node as num_replicas, or the local rank as the rank, repeats the shards on each node.
Why it hurts     Samples are trained on several times, or never.
How we know      The arguments are constants, torch.cuda.device_count() or LOCAL_RANK, and the job is started by torchrun. So is
                 what datasets' split_dataset_by_node is given.
What to do       Leave both out: the sampler asks the process group.
When it is fine  mp.spawn on one node, where the local rank is the rank; reading one shard on purpose in one process.
Source           torch.utils.data.distributed.DistributedSampler: the defaults are those of the current group.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR, WARNING
from distdoctor.diagnosis.source.source_file import Scope, argument, last_word
from distdoctor.lint.program import SAMPLER, ParsedFiles
from distdoctor.lint.rule import Sighting, rule


@rule("DD311", "sampler-for-another-world", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if last_word(call.func) == "split_dataset_by_node" and not _spawns(scope):
                yield from _split(call, scope, program)
            if program.kind_of_call(call, scope.file) != SAMPLER or _spawns(scope):
                continue
            replicas, rank = argument(call, 1, "num_replicas"), argument(call, 2, "rank")
            if _number(rank) is not None and (_number(replicas) or 2) > 1 and program.is_distributed(scope.file):
                yield _sighting(call, scope, f"every process reads the shard of rank {_number(rank)}", ERROR)
            elif _is_device_count(replicas, scope, program):
                yield _sighting(call, scope, "the sampler takes the GPU count of one node for the world size", WARNING)
            elif _is_local_rank(rank, scope, program):
                yield _sighting(
                    call, scope, "the sampler is given the local rank: each node repeats the same shards", WARNING
                )


def _split(call: ast.Call, scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    """datasets' way to deal out a data set among all processes."""
    rank, world = argument(call, 1, "rank"), argument(call, 2, "world_size")
    of_one_node = world is not None and "local" in ast.unparse(world).lower()
    if _is_local_rank(rank, scope, program) and not of_one_node:
        title = "the dataset is dealt out by the local rank: each node repeats the same shards"
        yield _sighting(call, scope, title, WARNING)


def _sighting(call: ast.Call, scope: Scope, title: str, severity: int) -> Sighting:
    return Sighting(
        node=call,
        scope=scope,
        title=title,
        why="num_replicas and rank must be the world size and the global rank, which are the defaults",
        remedy="sampler-of-this-world",
        severity=ERROR if severity == ERROR else WARNING,
    )


def _spawns(scope: Scope) -> bool:
    """One node by construction: the ranks are children of this script."""
    return any(last_word(call.func) in ("spawn", "start_processes") for one in scope.file.scopes for call in one.calls)


def _number(node: ast.expr | None) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _is_device_count(node: ast.expr | None, scope: Scope, program: ParsedFiles) -> bool:
    if isinstance(node, ast.Name):
        bound = program.bindings(node.id, scope)
        return len(bound) == 1 and _is_device_count(bound[0][0].value, bound[0][1], program) and bound[0][0].item < 0
    return isinstance(node, ast.Call) and program.meaning(node.func, scope.file) == "torch.cuda.device_count"


def _is_local_rank(node: ast.expr | None, scope: Scope, program: ParsedFiles) -> bool:
    """A value that was read from LOCAL_RANK, through one name."""
    if isinstance(node, ast.Name):
        bound = program.bindings(node.id, scope)
        return len(bound) == 1 and "LOCAL_RANK" in _strings(bound[0][0].value)
    return node is not None and "LOCAL_RANK" in _strings(node)


def _strings(node: ast.expr) -> set[str]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


SICK = """
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler
dist.init_process_group("gloo")
def sampler(data): return DistributedSampler(data, num_replicas=4, rank=0)
"""
HEALTHY = """
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler
dist.init_process_group("gloo")
def sampler(data): return DistributedSampler(data, num_replicas=dist.get_world_size(), rank=dist.get_rank())
"""
