"""
DD220 norm-over-wrong-ranks: a gradient norm taken over one rank's shards.

What it means    Under FSDP each rank holds a shard of every gradient. A norm summed over p.grad is the norm of those shards only.
Why it hurts     Each rank clips by a different factor, and all of them clip too little.
How we know      p.grad.norm() over the parameters of a sharded model, with no reduction in the function nor, where the
                 parameters are handed in, in its callers; or torch.nn.utils.clip_grad_norm_ on an FSDP1 model.
What to do       FSDP1: model.clip_grad_norm_(limit). fully_shard: torch.nn.utils.clip_grad_norm_, which knows DTensor.
When it is fine  The norm is reduced over the group (all_reduce, full_tensor), or an `if` clips a sharded model by its own method.
Source           torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.source_file import Scope, dotted, last_word
from distdoctor.lint.program import FSDP, ParsedFiles, given_for
from distdoctor.lint.rank_conditions import Condition, conditions
from distdoctor.lint.rule import Sighting, replace_node, rule

_REDUCING = ("all_reduce", "full_tensor", "get_total_norm", "clip_grad_norm_", "redistribute", "reduce")


@rule("DD220", "norm-over-wrong-ranks", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if program.is_torch(call.func, scope.file, "clip_grad_norm_") and call.args:
                yield from _of_torch(call, scope, program)
        if not any(last_word(call.func) in _REDUCING for call in scope.calls):
            yield from _by_hand(scope, program)


def _of_torch(call: ast.Call, scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    model = _model_of(call.args[0])
    made = program.made(model, scope) if model is not None else ()
    if model is None or {one.kind for one in made} != {FSDP}:
        return
    if any(last_word(one.call.func) == "fully_shard" or "fully_shard" in one.scope.file.imports for one in made):
        return
    if any(_clips_whole(one, program, scope) for one in conditions(call, scope)):
        return
    name, limit = dotted(model), [*call.args[1:], *(k.value for k in call.keywords if k.arg == "max_norm")][:1]
    new = f"{name}.clip_grad_norm_({ast.unparse(limit[0])})" if name and limit and len(call.args) <= 2 else ""
    edits: tuple[Edit, ...] = (replace_node(call, scope, new),) if new else ()
    yield Sighting(
        node=call,
        scope=scope,
        title="clip_grad_norm_ takes the norm of this rank's shards: the model is wrapped by FSDP",
        why="each rank clips by the norm of its own shards of the gradients",
        remedy="clip-the-whole-gradient",
        change=new or "model.clip_grad_norm_(limit)",
        edits=edits,
    )


def _clips_whole(condition: Condition, program: ParsedFiles, scope: Scope) -> bool:
    """Whether the other branch of an `if` clips by a method that knows the shards: then this branch is for a model without."""
    statement = condition.statement
    if not isinstance(statement, ast.If) or condition.leaves:
        return False
    other = statement.body if condition.negated else statement.orelse
    calls = (one for block in other for one in ast.walk(block) if isinstance(one, ast.Call))
    return any(
        last_word(one.func) == "clip_grad_norm_" and not program.is_torch(one.func, scope.file, "clip_grad_norm_")
        for one in calls
    )


def _by_hand(scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    """`p.grad.norm()` for p of a sharded model."""
    for call in scope.calls:
        if last_word(call.func) not in ("norm", "pow", "square", "vector_norm"):
            continue
        for iterated in _iterated(call, scope):
            models = _models_behind(iterated, scope, program)
            if models and all(program.kinds(model, where) == {FSDP} for model, where in models):
                model, where = models[0]
                yield Sighting(
                    node=call,
                    scope=scope,
                    title=f"the gradient norm of {dotted(model)} is taken over this rank's shards",
                    why="the model is sharded, and nothing in this function reduces the norm over the ranks",
                    remedy="clip-the-whole-gradient",
                    also=() if where is scope else ((model, where, "hands in the parameters"),),
                )
                return


def _iterated(call: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """Where the parameters come from: of `p.grad.norm()`, or of `g.norm()` for g of a list of gradients."""
    for name in _names(call):
        for binding in scope.bindings.get(name, ()):
            if binding.looped and _of_gradient(call):
                yield binding.value
            elif binding.looped:
                listed = scope.bindings.get(dotted(binding.value), []) if dotted(binding.value) else []
                for one in (binding.value, *(other.value for other in listed if not other.looped)):
                    if isinstance(one, ast.ListComp | ast.GeneratorExp) and last_word(one.elt) == "grad":
                        yield one.generators[0].iter


def _models_behind(iterated: ast.expr, scope: Scope, program: ParsedFiles) -> list[tuple[ast.expr, Scope]]:
    """The models whose parameters are iterated: here, or where callers hand them in."""
    model = _model_of(iterated)
    if model is not None:
        return [(model, scope)]
    if not isinstance(iterated, ast.Name) or iterated.id not in scope.parameters or iterated.id in scope.bindings:
        return []
    found = []
    for site in program.callers(scope):
        given = given_for(site.call, scope, iterated.id)
        model = _model_of(given) if given is not None else None
        if model is None or any(last_word(call.func) in _REDUCING for call in site.scope.calls):
            return []
        found.append((model, site.scope))
    return found


def _of_gradient(call: ast.Call) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "grad" for one in ast.walk(call))


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _model_of(node: ast.expr) -> ast.expr | None:
    """`model` of `model.parameters()`."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PARAMETERS
    return node.func.value if called and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None


_PARAMETERS = ("parameters", "named_parameters")

SICK = """
import torch
from torch.distributed.fsdp import fully_shard
def norm(model):
    fully_shard(model)
    return sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
"""
HEALTHY = """
import torch
from torch.distributed.fsdp import fully_shard
def norm(model):
    fully_shard(model)
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
