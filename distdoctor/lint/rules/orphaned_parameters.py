"""
DD211 orphaned-parameters: the optimizer holds parameters that no longer train.

What it means    fully_shard, FSDP and parallelize_module put new parameters into the model, and so does a new layer. An optimizer
                 built before that still steps the old ones.
Why it hurts     The loss does not fall, or only part of the model trains; nothing fails.
How we know      The optimizer is built from the model's parameters and, later in the same function, the model is sharded or one
                 of its layers is replaced, without a new optimizer.
What to do       Build the optimizer last.
When it is fine  DDP: it keeps the parameters. .to(device): it changes them in place. FSDP with use_orig_params=True.
Source           torch.distributed.fsdp.fully_shard: construct the optimizer after it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, dotted, exclusive, is_constant, keyword, lineno, made_by
from distdoctor.lint.program import OPTIMIZER, ParsedFiles
from distdoctor.lint.rule import Sighting, rule


@rule("DD211", "orphaned-parameters", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        builds = [call for call in scope.calls if program.kind_of_call(call, scope.file) == OPTIMIZER]
        for build in builds:
            models = _models(build)
            change = next(
                (c for c in _changes(scope, program) if c[1] in models and _follows(c[0], build, builds, scope)), None
            )
            if change is not None:
                node, model, what = change
                yield Sighting(
                    node=build,
                    scope=scope,
                    title=f"the optimizer is built before {what}, so it steps parameters that {model} no longer has",
                    why=f"line {lineno(node)} gives {model} new parameters; the optimizer keeps the old ones",
                    remedy="build-the-optimizer-last",
                    also=((node, scope, what),),
                )


def _models(build: ast.Call) -> set[str]:
    """The names whose parameters() the optimizer is given, directly."""
    given = [*build.args[:1], *(k.value for k in build.keywords if k.arg == "params")]
    return {
        dotted(one.func.value)
        for argument in given
        for one in ast.walk(argument)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "parameters"
    } - {""}


def _follows(node: ast.AST, build: ast.Call, builds: list[ast.Call], scope: Scope) -> bool:
    if lineno(node) <= lineno(build) or exclusive(node, build, scope.file):
        return False
    return not any(lineno(other) > lineno(node) for other in builds)


def _changes(scope: Scope, program: ParsedFiles) -> Iterator[tuple[ast.AST, str, str]]:
    """(node, model, what it does): where a model gets new parameters."""
    for call in scope.calls:
        if not call.args:
            continue
        model = dotted(call.args[0])
        if program.is_torch(call.func, scope.file, "fully_shard", "parallelize_module") and model:
            yield call, model, f"{program.meaning(call.func, scope.file).rpartition('.')[2]}({model})"
        original = keyword(call, "use_orig_params")
        keeps = original is not None and not is_constant(original, False)
        if program.is_torch(call.func, scope.file, "FullyShardedDataParallel") and model and not keeps:
            yield call, model, f"FSDP({model})"
    for assign in scope.assigns:
        value = made_by(assign.value)
        if isinstance(assign, ast.Assign) and value is not None and len(assign.targets) == 1:
            target, made = assign.targets[0], program.meaning(value.func, scope.file)
            if (
                isinstance(target, ast.Attribute)
                and made.startswith("torch.nn.")
                and made.rpartition(".")[2][:1].isupper()
            ):
                owner = dotted(target.value)
                if owner and owner != "self" and "parallel" not in made:
                    yield assign, owner, f"{dotted(target)} is replaced"


SICK = """
import torch
from torch.distributed.fsdp import fully_shard
def build(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fully_shard(model)
    return optimizer
"""
HEALTHY = """
import torch
from torch.distributed.fsdp import fully_shard
def build(model):
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""
