"""How replicas that part are put into words. Shared by the checks of the DD2xx family."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from math import isfinite
from typing import Any

from distdoctor.diagnosis.finding import Place
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.tensor_differences import GRADS, TensorDifference
from distdoctor.diagnosis.source.rank_guard import guard_for
from distdoctor.diagnosis.source.set_order import lists_in_set_order
from distdoctor.diagnosis.source.source_file import SourceFile, source_file
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.events import TraceEvent


def which(parting: ReplicaDivergence) -> str:
    """`head.weight and 3 more of 62 parameters`, `the parameters`."""
    first = parting.first
    if first is None:
        return "the parameters"
    more = len(parting.differences) - 1
    return f"{first.name} and {more} more of {parting.compared} parameters" if more else first.name


def sides(parting: ReplicaDivergence) -> str:
    """`rank 2 against ranks 0-1,3`; of a tie, every side."""
    first, *others = [named(variant) for variant in parting.variants]
    if len(others) > 3:
        return f"{len(parting.variants)} versions on {len(parting.updates)} ranks"
    return f"{' and '.join(others)} against {first}" if not parting.is_tie else " against ".join([first, *others])


def tie(parting: ReplicaDivergence) -> str:
    """What a tie means for the reader; "" where most ranks agree. Or who had loaded what the others lack."""
    if parting.loaded_on:
        return f"{named(parting.loaded_on)} had loaded a saved state, {named(parting.odd)} had not"
    if not parting.is_tie:
        return ""
    return "without a majority, the recording cannot tell which one is right"


def places(parting: ReplicaDivergence) -> tuple[Place, ...]:
    """One row for each version of the bits: the optimizer's step, and the first tensor's norm there."""
    first = parting.first
    rows = []
    for number, ranks in enumerate(parting.variants[:4]):
        update = parting.updates.get(ranks[0])
        words = f"version {chr(65 + number)} of the {'gradients' if parting.what == GRADS else parting.what}"
        site = parting.said_at.get(ranks[0]) or (update.site if update else SourceLine())
        rows.append(Place(site, ranks, words + _norm(first, ranks[0], parting)))
    if parting.loaded_at:
        rows.insert(0, Place(parting.loaded_at, parting.loaded_on, "loads a saved state, before the first step"))
    return tuple(rows)


def loaded_where(parting: ReplicaDivergence, sources: Mapping[str, str]) -> tuple[Place, ...]:
    """The condition that lets only the ranks with a saved state come to the line that loads it; () where there is none."""
    others = [rank for rank in parting.updates if rank not in parting.loaded_on]
    found = guard_for(sources, parting.loaded_at, parting.loaded_on, others) if parting.loaded_at else None
    return (Place(found[0], parting.loaded_on, f"loads only where `{found[1].only_if}`"),) if found else ()


def in_other_orders(orders: Mapping[str, tuple[int, ...]]) -> str:
    """What `Gradients.other_orders` says, and what follows from it."""
    held = " and ".join(f"`{name}` on {named(ranks)}" for name, ranks in list(orders.items())[:3])
    return (
        f"the optimizers hold the same parameters in different orders: where there is {held}, "
        "what is reduced in that order adds up gradients of different parameters"
    )


def ordered_at(
    parting: ReplicaDivergence, orders: Mapping[str, tuple[int, ...]], sources: Mapping[str, str]
) -> tuple[Place, ...]:
    """Where the source makes the list of parameters in the order of a set: in the file of the step, else in another one."""
    near = sorted(sources, key=lambda path: path != parting.site.path)
    lines = next((found for path in near if (found := lists_in_set_order(sources, path))), [])
    ranks = tuple(sorted(rank for own in orders.values() for rank in own))
    return tuple(Place(line, ranks, "in the order of a set, another one in each process") for line in lines[:2])


def _norm(first: TensorDifference | None, rank: int, parting: ReplicaDivergence) -> str:
    if first is None or parting.what != GRADS:
        return ""
    if rank in first.none_on:
        return f", {first.name} has none"
    if rank not in first.norms:
        return ""
    norm = first.norms[rank]
    return f", |{first.name}| = {norm:.6g}" if isfinite(norm) else f", {first.name} holds a NaN or an infinity"


def evidence(parting: ReplicaDivergence, **more: object) -> dict[str, object]:
    """The numbers behind a parting."""
    found: dict[str, object] = {
        "what": parting.what,
        "step": parting.step,
        "agreed_until_step": max(parting.agreed, 0),
        "optimizer": parting.peers.optimizer,
        "replicas_by": parting.peers.by,
        "replicas": list(parting.peers.ranks),
        "different": len(parting.differences),
        "compared": parting.compared,
        "parameters": [difference.name for difference in parting.differences[:8]],
        "versions": [list(variant) for variant in parting.variants[:8]],
    }
    return {**found, **more}


def by_rank(values: Mapping[int, Any], unit: str = "") -> str:
    """`4 on ranks 0-2, 3 on rank 3`; the first with its unit (` steps`)."""
    together: dict[Any, list[int]] = {}
    for rank, value in sorted(values.items()):
        together.setdefault(value, []).append(rank)
    if len(together) == 1:
        return f"{next(iter(together))}{unit} on every rank"
    first = next(iter(together))
    return ", ".join(f"{value}{unit if value == first else ''} on {named(ranks)}" for value, ranks in together.items())


def event_site(
    gradients: Gradients, kind: type[TraceEvent], ranks: tuple[int, ...], *, among: Container[str] | None = None
) -> SourceLine:
    """The line of the first event of this kind on any of the ranks; only of those whose `name` is `among` some, when given."""
    for rank in ranks:
        if rank in gradients.ranks:
            for event in gradients.ranks[rank].events(kind):
                if event.site and (among is None or getattr(event, "name", "") in among):
                    return event.site
    return SourceLine()


def line_with(sources: Mapping[str, str], near: SourceLine, *words: str, within: bool = False) -> SourceLine:
    """The line of the user's file nearest to `near` that holds all the words, in the same function first (or only, `within`)."""
    source = sources.get(near.path, "")
    every = [
        number
        for number, line in enumerate(source.splitlines(), 1)
        if all(word in line for word in words) and not line.lstrip().startswith("#")
    ]
    first, last = _function_around(source_file(sources, near.path), near.line)
    found = [number for number in every if first <= number <= last] or ([] if within else every)
    if not found:
        return SourceLine()
    return SourceLine(near.path, min(found, key=lambda number: abs(number - near.line)), near.function)


def _function_around(file: SourceFile | None, line: int) -> tuple[int, int]:
    """First and last line of the innermost function that holds a line; of the whole file when none does."""
    function = file.function_at(line) if file is not None else None
    if function is None or isinstance(function, ast.Module):
        return 1, 1 << 30
    return function.lineno, function.end_lineno or function.lineno


def text_at(sources: Mapping[str, str], site: SourceLine) -> str:
    """The line of source at a site, without its indent; "" when it cannot be read."""
    lines = sources.get(site.path, "").splitlines()
    return lines[site.line - 1].strip() if 0 < site.line <= len(lines) else ""
