"""
DD217 detached-gather: the loss is computed from features gathered by a collective that autograd does not track.

What it means    torch.distributed.all_gather writes into plain tensors: its output has no autograd history.
Why it hurts     A contrastive loss over gathered features sends no gradient back through them, on any rank, not even to its own.
How we know      The list that all_gather fills flows into a loss, and the rank's own slot is not put back.
What to do       torch.distributed.nn.functional.all_gather, or put the rank's own features back: gathered[rank] = features.
When it is fine  Metrics; under no_grad; labels and other values without gradient.
Source           torch.distributed.nn.functional; OpenCLIP's gather_features(local_loss, gather_with_grad).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, dotted, last_word, lineno
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import backwards, names_in, without_gradients

_GATHERS = ("all_gather", "all_gather_into_tensor")
_LOSSES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "kl_div",
)
_NO_FEATURES = (
    "label",
    "target",
    "idx",
    "index",
    "count",
    "size",
    "len",
    "mask",
    "ids",
    "rank",
    "metric",
    "acc",
    "grad",
)


@rule("DD217", "detached-gather", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if not program.is_torch(call.func, scope.file, *_GATHERS) or len(call.args) < 2:
                continue
            if ".nn." in program.meaning(call.func, scope.file) or without_gradients(call, scope):
                continue
            gathered, given = dotted(call.args[0]), call.args[1]
            if (
                gathered
                and _has_gradient(given)
                and not _cut_off(given, scope)
                and not _put_back(gathered, given, scope)
                and _trained_on(gathered, call, scope)
            ):
                yield Sighting(
                    node=call,
                    scope=scope,
                    title=f"the loss is computed from {gathered}, which {dotted(call.func)} gathers without gradient",
                    why="the output of the collective has no autograd history: no gradient flows back to the gathered features",
                    remedy="gather-with-gradient",
                )


def _has_gradient(given: ast.expr) -> bool:
    word = dotted(given).lower()
    return bool(word) and not any(part in word for part in _NO_FEATURES) and "detach" not in word


def _cut_off(given: ast.expr, scope: Scope) -> bool:
    """Whether it was taken without its history on purpose: `shard = weight.data.clone()`."""
    bound = scope.bindings.get(dotted(given), [])
    words = {last_word(one) for made in bound for one in ast.walk(made.value)}
    return bool(words & {"data", "detach"})


def _put_back(gathered: str, given: ast.expr, scope: Scope) -> bool:
    """`gathered[rank] = features`, or the own features joined in: torch.cat([features, ...])."""
    for assign in scope.assigns:
        targets = assign.targets if isinstance(assign, ast.Assign) else []
        if any(isinstance(one, ast.Subscript) and dotted(one.value) == gathered for one in targets):
            return True
    return any(
        dotted(call.func).endswith(("cat", "stack", "concat")) and dotted(given) in names_in(call)
        for call in scope.calls
    )


def _trained_on(gathered: str, gather: ast.Call, scope: Scope) -> bool:
    """Whether the gathered values flow into a backward or a loss of this function."""
    tainted = {gathered}
    for assign in sorted(scope.assigns, key=lineno):
        if lineno(assign) > lineno(gather) and assign.value is not None and names_in(assign.value) & tainted:
            targets = {
                dotted(one) for one in (assign.targets if isinstance(assign, ast.Assign) else [assign.target])
            } - {""}
            cut = isinstance(assign.value, ast.Call) and last_word(assign.value.func) == "detach"
            tainted = tainted - targets if cut else tainted | targets
    ends = [*backwards(scope), *(c for c in scope.calls if dotted(c.func).rpartition(".")[2] in _LOSSES)]
    return any(names_in(end) & tainted for end in ends if lineno(end) > lineno(gather))


SICK = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
def loss(features, everything, labels):
    dist.all_gather(everything, features)
    logits = features @ torch.cat(everything).t()
    return F.cross_entropy(logits, labels)
"""
HEALTHY = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
def loss(features, everything, labels, rank):
    dist.all_gather(everything, features)
    everything[rank] = features
    logits = features @ torch.cat(everything).t()
    return F.cross_entropy(logits, labels)
"""
