"""
DD701 saved-wrapper: the wrapped model is saved instead of the model.

What it means    torch.save(model) of a DDP or DataParallel model pickles the wrapper, with its process group and its buckets; its
                 state_dict has `module.` before every name.
Why it hurts     The first loads only inside a job with a process group; loading the second into the plain model fails.
How we know      The object that torch.save is given is the wrapper; or its state_dict is saved, and nothing here loads one
                 or only into models that are plainly not wrapped.
What to do       torch.save(model.module.state_dict(), path).
When it is fine  The script itself loads the checkpoint back into a wrapped model.
Source           PyTorch tutorials: saving and loading torch.nn.DataParallel models.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import NOTE, WARNING
from distdoctor.diagnosis.source.source_file import Scope, SourceFile, dotted, last_word
from distdoctor.lint.program import DDP, DP, ParsedFiles
from distdoctor.lint.rank_conditions import conditions
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import method_calls


@rule("DD701", "saved-wrapper", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if program.meaning(call.func, scope.file) != "torch.save" or not call.args:
                continue
            wrapper = _wrapper_in(call.args[0], scope, program)
            state = None if wrapper is not None else _state_of_wrapper(call.args[0], scope, program)
            if wrapper is not None:
                yield _sighting(call, dotted(wrapper), scope, whole=True)
            elif state is not None and not _asked(call, scope) and not _loads_into_wrapper(scope.file, program):
                yield _sighting(call, dotted(state), scope, whole=False)


def _wrapper_in(saved: ast.expr, scope: Scope, program: ParsedFiles) -> ast.expr | None:
    """The wrapper itself, or one of the values of a dictionary."""
    values = saved.values if isinstance(saved, ast.Dict) else [saved]
    return next((v for v in values if dotted(v) and _is_wrapper(v, scope, program)), None)


def _asked(call: ast.Call, scope: Scope) -> bool:
    """`if isinstance(model, DataParallel): ... else: torch.save(...)`: somebody has thought of the wrapper."""
    return any(
        last_word(getattr(n, "func", None)) in ("isinstance", "hasattr")
        for c in conditions(call, scope)
        for n in ast.walk(c.test)
    )


def _loads_into_wrapper(file: SourceFile, program: ParsedFiles) -> bool:
    """Whether a state may be loaded back into a wrapper: who receives it is not plainly a model without one."""
    text = file.text
    if "load_state_dict" not in text:
        return False
    if "module." in "".join(str(one.value) for one in file.nodes(ast.Constant) if isinstance(one.value, str)):
        return True  # names are changed on the way
    calls = [(one, where) for where in file.scopes for one in method_calls(where, "load_state_dict")]
    return not calls or any(not _is_plain(one.func, where, program) for one, where in calls)


def _is_plain(function: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    """An optimizer or something beside the model; or a model that this function makes and never wraps."""
    assert isinstance(function, ast.Attribute)
    name = dotted(function.value)
    if any(part in name.lower() for part in ("optim", "sched", "scaler", "ema", "sampler", "loader")):
        return True
    made = scope.bindings.get(name, []) if name else []
    return (
        bool(made)
        and all(isinstance(one.value, ast.Call) and one.item < 0 and not one.looped for one in made)
        and not program.kinds(function.value, scope)
    )


def _state_of_wrapper(saved: ast.expr, scope: Scope, program: ParsedFiles) -> ast.expr | None:
    for one in ast.walk(saved):
        function = one.func if isinstance(one, ast.Call) else None
        if not isinstance(function, ast.Attribute) or last_word(function) != "state_dict":
            continue
        if _is_wrapper(function.value, scope, program):
            return function.value
    return None


def _is_wrapper(node: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    kinds = program.kinds(node, scope)
    return bool(kinds) and kinds <= {DDP, DP} and isinstance(node, ast.Name | ast.Attribute)


def _sighting(call: ast.Call, model: str, scope: Scope, *, whole: bool) -> Sighting:
    what = (
        f"{model} is saved with its wrapper" if whole else f"every name in {model}.state_dict() starts with `module.`"
    )
    why = (
        "the pickle holds the wrapper: it loads only inside a job with a process group"
        if whole
        else f"{model} is the wrapper; its state does not load into the plain model"
    )
    return Sighting(
        node=call,
        scope=scope,
        title=what,
        why=why,
        change=f"{model}.module.state_dict()",
        severity=WARNING if whole else NOTE,
    )


SICK = """
import torch
def save(net, rank):
    model = torch.nn.parallel.DistributedDataParallel(net)
    if rank == 0:
        torch.save(model, "model.pt")
"""
HEALTHY = """
import torch
def save(net, rank):
    model = torch.nn.parallel.DistributedDataParallel(net)
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
"""
