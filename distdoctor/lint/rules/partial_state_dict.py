"""
DD125 partial-state-dict: only some ranks ask for the state dict of a sharded model.

What it means    state_dict of a sharded model gathers the shards: it is a collective. So are get_model_state_dict and
                 torch.distributed.checkpoint's save and load.
Why it hurts     The rank that saves waits for shards that the others never send.
How we know      The call is under a condition on the rank, and the model was wrapped by FSDP or fully_shard, or the script gives
                 its Accelerator a plugin that shards.
What to do       Get the state dict on every rank and write the file on one.
When it is fine  DDP: its state dict is local. no_dist=True. A model that is sharded only afterwards.
Source           torch.distributed.checkpoint.state_dict: all ranks have to call it; rank0_only leaves the others an empty dict.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, SourceFile, dotted, is_constant, keyword, last_word, lineno
from distdoctor.lint.program import ACCELERATOR, FSDP, ParsedFiles
from distdoctor.lint.rank_conditions import on_rank
from distdoctor.lint.rule import Sighting, rule

_GATHERING = ("get_model_state_dict", "get_state_dict", "get_optimizer_state_dict")
_OF_FSDP = ("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict", "state_dict_type")
_OF_CHECKPOINT = ("save", "load", "async_save", "save_state_dict", "load_state_dict")


@rule("DD125", "partial-state-dict", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        told: set[int] = set()
        for call in scope.calls:
            what = _gathers(call, scope, program)
            condition = on_rank(call, scope, program) if what and not _is_sharded_later(call, scope, program) else None
            if condition is None or id(condition.statement) in told:
                continue
            told.add(id(condition.statement))
            yield Sighting(
                node=call,
                scope=scope,
                title=f"{what} of a sharded model runs only where `{condition.where}`",
                why="it gathers shards from every rank, so the ranks that call it wait for those that do not",
                remedy="state-dict-on-every-rank",
                also=((condition.statement, scope, "the condition on the rank"),),
            )


def _is_sharded_later(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    """Whether what is asked for its state is given to something that shards it only after that: until then its state is local."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    names = {dotted(one) for one in (owner, *call.args[:1])} - {""}
    later = [one for one in scope.calls if lineno(one) > lineno(call) and names & {dotted(a) for a in one.args[:1]}]
    return any(_shards(one, scope, program) for one in later)


def _shards(call: ast.Call, scope: Scope, program: ParsedFiles, steps: int = 4) -> bool:
    """Whether a call is one of fully_shard or FSDP, or leads to one within a few more."""
    if program.kind_of_call(call, scope.file) == FSDP:
        return True
    inner = program.target(call, scope) if steps else None
    return inner is not None and any(_shards(one, inner, program, steps - 1) for one in inner.calls)


def _gathers(call: ast.Call, scope: Scope, program: ParsedFiles) -> str:
    word = last_word(call.func)
    name = program.meaning(call.func, scope.file)
    if word in _GATHERING and name.startswith("torch.distributed.checkpoint."):
        return word
    if word in _OF_FSDP and "FullyShardedDataParallel" in name:
        return word
    if word in _OF_CHECKPOINT and name.startswith("torch.distributed.checkpoint."):
        return "" if is_constant(keyword(call, "no_dist"), True) else f"checkpoint.{word}"
    if word == "get_state_dict" and isinstance(call.func, ast.Attribute) and _shards_by_accelerate(scope.file):
        return f"accelerator.{word}" if ACCELERATOR in program.kinds(call.func.value, scope) else ""
    if word == "state_dict" and isinstance(call.func, ast.Attribute):
        return word if program.kinds(call.func.value, scope) == {FSDP} else ""
    return ""


def _shards_by_accelerate(file: SourceFile) -> bool:
    """Whether the file gives its Accelerator a plugin that shards: of a DDP model get_state_dict is local."""
    plugins = ("FullyShardedDataParallelPlugin", "DeepSpeedPlugin")
    return any(full.rpartition(".")[2] in plugins for full in file.imports.values())


SICK = """
import torch
from torch.distributed.fsdp import fully_shard
def save(model, rank):
    fully_shard(model)
    if rank == 0:
        torch.save(model.state_dict(), "m.pt")
"""
HEALTHY = """
import torch
from torch.distributed.fsdp import fully_shard
def save(model, rank):
    fully_shard(model)
    state = model.state_dict()
    if rank == 0:
        torch.save(state, "m.pt")
"""
