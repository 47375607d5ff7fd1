"""Which calls are collectives of the whole job, and which functions issue them, however many calls away."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from distdoctor.diagnosis.source.source_file import Scope, argument, dotted, is_constant, keyword, last_word, within
from distdoctor.lint.known_values import Values, runs, values_given
from distdoctor.lint.program import ACCELERATOR, ParsedFiles
from distdoctor.lint.rank_conditions import on_rank

COLLECTIVES = frozenset(
    (
        *("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_object", "all_gather_into_tensor"),
        *("all_gather_coalesced", "broadcast", "broadcast_object_list", "reduce", "gather", "gather_object"),
        *(
            "scatter",
            "scatter_object_list",
            "reduce_scatter",
            "reduce_scatter_tensor",
            "all_to_all",
            "all_to_all_single",
        ),
        *("barrier", "monitored_barrier", "new_group", "new_subgroups", "init_device_mesh"),
    )
)
MAKES_GROUP = ("new_group", "new_subgroups", "init_device_mesh")
# Where `group` stands when it is given by place (torch 2.14).
_GROUP_PLACE = {
    **dict.fromkeys(("barrier", "monitored_barrier"), 0),
    **dict.fromkeys(("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast"), 2),
    **dict.fromkeys(("broadcast_object_list", "all_to_all"), 2),
    **dict.fromkeys(("reduce", "gather", "gather_object", "scatter", "scatter_object_list"), 3),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_tensor"), 3),
    "all_to_all_single": 4,
}
# What Lightning's objects do together: of a module, of a Fabric, of a strategy, of a trainer.
_OF_MODULE = ("all_gather",)
_OF_FABRIC = ("barrier", "all_gather", "all_reduce", "broadcast", "save")
_OF_STRATEGY = ("barrier", "all_gather", "reduce", "broadcast")
_OF_TRAINER = ("save_checkpoint",)
_OF_LIGHTNING = frozenset((*_OF_MODULE, *_OF_FABRIC, *_OF_STRATEGY, *_OF_TRAINER, "log", "log_dict"))
_OF_ACCELERATE = ("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes")
MOST_STEPS = 5


@dataclass(frozen=True, eq=False)
class Issue:
    """A collective that is issued, and the calls on the way to it, the outermost first (one when it stands there itself)."""

    operation: str
    way: tuple[tuple[ast.Call, Scope], ...]


def operation(call: ast.Call, scope: Scope, program: ParsedFiles) -> str:
    """The collective over all ranks that a call is, "" for anything else. With a group of its own it is another matter."""
    word = last_word(call.func)
    if word in COLLECTIVES:
        name = program.meaning(call.func, scope.file)
        place = _GROUP_PLACE.get(word)
        group = argument(call, place, "group") if place is not None else keyword(call, "group")
        group = group or keyword(call, "process_group")
        if group is not None and not is_constant(group, None) and "WORLD" not in dotted(group):
            return ""
        if keyword(call, "use_local_synchronization") is not None:
            return ""  # a group that only its members make
        if name.startswith("torch.distributed.") and ".nn." not in name:
            return word
    if word in _OF_ACCELERATE and isinstance(call.func, ast.Attribute):
        receiver = call.func.value
        if last_word(receiver) == "accelerator" or ACCELERATOR in program.kinds(receiver, scope):
            return word
    return _of_lightning(call, word, scope, program)


def _of_lightning(call: ast.Call, word: str, scope: Scope, program: ParsedFiles) -> str:
    """`self.all_gather(x)` of a LightningModule, `fabric.barrier()`, `trainer.strategy.reduce(x)`."""
    if word not in _OF_LIGHTNING or not isinstance(call.func, ast.Attribute) or "ightning" not in scope.file.text:
        return ""
    whose = last_word(call.func.value).strip("_")
    if dotted(call.func.value) == "self":
        bases = {last_word(base) for base in scope.file.bases.get(scope.class_name, ())}
        if "LightningModule" not in bases:
            return ""
        alone = keyword(call, "rank_zero_only")
        logs = word in ("log", "log_dict") and is_constant(keyword(call, "sync_dist"), True)
        return word if word in _OF_MODULE or (logs and (alone is None or is_constant(alone, False))) else ""
    known = {"fabric": _OF_FABRIC, "strategy": _OF_STRATEGY, "trainer": _OF_TRAINER}.get(whose, ())
    return word if word in known and not _has_one_rank(call.func.value, scope, program) else ""


def _has_one_rank(receiver: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    """Whether a Trainer or a Fabric was made with `devices=1` on one host, as tests do: it has nobody to wait for."""
    made = [one.value for one, _ in program.bindings(dotted(receiver).partition(".")[0], scope)]
    return bool(made) and all(
        isinstance(one, ast.Call)
        and last_word(one.func) in ("Trainer", "Fabric")
        and is_constant(keyword(one, "devices"), 1)
        and keyword(one, "num_nodes") is None
        for one in made
    )


def issues(scope: Scope, program: ParsedFiles, calls: Iterable[ast.Call] | None = None) -> list[Issue]:
    """The collectives that the calls of a scope (or just `calls`) issue, through helper functions too."""
    return _issues(scope, list(scope.calls if calls is None else calls), program, frozenset(), {})


def _issues(
    scope: Scope, calls: list[ast.Call], program: ParsedFiles, seen: frozenset[Scope], known: Values
) -> list[Issue]:
    """`seen`: the functions on the way here, each of which called the next. `known`: what their calls settled in this one."""
    found = []
    leading = program.leading_to(operation)  # few of all; the ways through the others are many
    for call in calls:
        word, target = operation(call, scope, program), program.target(call, scope)
        if (not word and target not in leading) or not runs(call, scope, program, known):
            continue
        if word:
            found.append(Issue(word, ((call, scope),)))
            continue
        if target is None or target in seen or len(seen) >= MOST_STEPS or program.is_generator(target):
            continue
        inner = _issues(target, target.calls, program, seen | {target}, values_given(call, scope, target, known))
        # what is on some ranks only inside the helper is the helper's own affair
        inner = [one for one in inner if on_rank(one.way[0][0], target, program) is None]
        found += [Issue(one.operation, ((call, scope), *one.way)) for one in inner]
    return found


def calls_in(nodes: Iterable[ast.AST], scope: Scope) -> list[ast.Call]:
    """The calls of a scope that stand inside one of the nodes."""
    nodes = list(nodes)
    return [call for call in scope.calls if any(within(node, call, scope.file) for node in nodes)]
