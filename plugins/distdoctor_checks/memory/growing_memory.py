"""
DD401 growing-memory: memory grows every step, because something keeps a reference to each step's tensors.

What it means    A variable holds on to tensors of earlier steps: `total += loss` keeps the graph of every loss, a list keeps
                 every output, a hidden state that is never detached drags its whole history along, a cache has no bound.
Why it hurts     The job runs well for hours and then runs out of memory; until then, the graph slows down every step.
How we know      The user's variables, and objects whose method is registered as a hook of a module again and again, are sampled
                 after steps 3, 6, 9, 12, 18, 24, ..., and the hooks of one function are counted. A graph in which ever
                 more operations are older than the previous sample has grown with the steps (certain). A container whose
                 tensors take more bytes at every sample, at a rate that does not fall, over 24 steps and 16 MiB, is likely
                 to keep growing; so are hooks of which there are more at each of four samples, and process groups of the same
                 ranks that are made at one line in eight steps or more and never destroyed. If no sampled variable
                 grows but the process (or the device) does, only that is reported, as a possibility. A queue.Queue without a
                 maxsize that held 16 items and 64 MiB: a note, possible. Memory that grew by 64 MiB with the batches of an
                 evaluation, beyond a fifth more than the training had, and was given back or lies in a variable of the function
                 that evaluates: a note, likely where a variable accounts for it.
What to do       Keep numbers (`loss.item()`) or detached tensors; bound caches; detach the state between batches.
When it is fine  Growth that levels off (warm-up, the allocator's cache, optimizer state of the first step), a deque with
                 maxlen, buffers that have reached their bound, graphs rebuilt in each step, however long, or kept for a backward
                 pass that came later (an episode). Where the source empties the variable in a loop or asks for its length, and
                 the run was too short to show it: a note, possible.
Source           PyTorch's notes, FAQ: "Don't accumulate history across your training loop".
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.memory.kept_by_evaluations import KeptByEvaluation, kept_by_evaluation
from distdoctor.diagnosis.memory.memory import MIB, HeldBytes, Holder, Memory, RankMemory, grows_steadily, mib, slope
from distdoctor.diagnosis.memory.piled_groups import PiledGroups, piled_groups
from distdoctor.diagnosis.replicas.wording import line_with
from distdoctor.diagnosis.source.edits import Edit, rows_replaced
from distdoctor.diagnosis.source.keeping_line import (
    ADDS,
    CARRIES,
    Keeping,
    hooks_registered_again,
    keeping_line,
    keeps_hooks,
)
from distdoctor.diagnosis.source.let_go import emptied_by_others, is_let_go
from distdoctor.recording.recording import Recording, SourceLine

LEAST_STEPS = 24  # for what only grows in bytes
LEAST_GROWTH = 16 * MIB
UNSEEN_STEPS = 48  # for a process that grows, and nobody knows by what
UNSEEN_GROWTH = 64 * MIB
UNSEEN_SHARE = 0.1  # of what it had
MOST = 3  # findings about variables
QUEUED = 16  # items in a queue: more than anybody reads ahead on purpose
REGISTER_ONCE = "register the hook once, before the loop, or call remove() of each handle after the step"
KEEP_LESS = "keep what the metric needs of each batch (argmax, counts, sums), and not the outputs"
KEEP_LESS_IN_TRAINER = (
    "pass Trainer(preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1)), or batch_eval_metrics=True: it keeps, "
    "and gathers on every rank, what that returns"
)
# Names that people give to what has a bound, which may be far off.
_BOUNDED_NAME = re.compile(r"replay|buffer|memory|queue|pool|bank|reservoir|window", re.IGNORECASE)


@dataclass(frozen=True)
class Growth:
    """What grows on one rank."""

    holder: Holder
    looks: tuple[HeldBytes, ...]
    graph: bool
    keeping: Keeping | None
    let_go: bool  # the source empties it, or asks for its length: then it may have a bound that was not reached
    barred: tuple[SourceLine, str] | None = (
        None  # where other ranks empty it, and the condition that keeps this one away
    )

    @property
    def doubted(self) -> bool:
        """Whether it may be bounded: a graph only while it is whole, so that a backward pass may be still to come."""
        return self.let_go and self.barred is None and (not self.graph or self.holder.may_be_waiting)

    @property
    def bytes_per_step(self) -> float:
        return self.holder.per_step(self.looks)

    @property
    def saved_per_step(self) -> float:
        """What the graph alone keeps: a tensor that is detached keeps its own values."""
        return slope([look.step for look in self.looks], [look.saved for look in self.looks])

    @property
    def nodes_per_step(self) -> float:
        return slope([look.step for look in self.looks], [look.nodes for look in self.looks])

    @property
    def hooks_per_step(self) -> float:
        return slope([look.step for look in self.looks], [look.length for look in self.looks])

    @property
    def only_hooks(self) -> bool:
        """Whether it is the number of hooks that grows, and nothing is known of what they keep."""
        return bool(self.holder.hook_growth)


@check("DD401", "growing-memory", severity=WARNING, stands_alone=True)
def examine(memory: Memory) -> Iterator[Finding]:
    by_key: dict[tuple[str, str, str], list[Growth]] = defaultdict(list)
    growing: set[int] = set()
    for rank in memory.each():
        for growth in _growths(memory, rank):
            by_key[growth.holder.key].append(growth)
            growing.add(rank.rank)
    ordered = sorted(by_key.values(), key=lambda own: (not own[0].graph, -own[0].bytes_per_step, own[0].holder.key))
    for growths in ordered[:MOST]:
        yield _finding(growths)
    yield from _queues_ahead(memory, {growth.holder.label for growths in ordered for growth in growths})
    yield from _by_evaluations(memory)
    groups = piled_groups(memory.recording.ranks)
    yield from map(_groups_made_again, groups)
    unseen = (
        {}
        if groups
        else {rank.rank: found for rank in memory.each() if rank.rank not in growing and (found := _unseen(rank))}
    )
    if unseen:
        yield _unknown(memory, unseen)


def _queues_ahead(memory: Memory, told: Container[str]) -> Iterator[Finding]:
    """A queue without a bound whose producer is faster than the training: it holds what the end of the run leaves it time for."""
    most: dict[int, tuple[HeldBytes, Holder]] = {}
    for rank in memory.each():
        queues = [one for one in rank.holders if one.label.endswith(" (Queue)")]
        fullest = [(max(one.looks, key=lambda look: look.bytes), one) for one in queues]
        for look, one in sorted(fullest, key=lambda found: -found[0].bytes)[:1]:
            if look.bytes >= UNSEEN_GROWTH and look.length >= QUEUED and one.label not in told:
                most[rank.rank] = look, one
    if not most:
        return
    ranks = tuple(sorted(most))
    look, holder = max(most.values(), key=lambda found: found[0].bytes)
    name = holder.label.removesuffix(" (Queue)")
    made = line_with(memory.recording.sources, holder.site, "Queue(")
    site = SourceLine(made.path, made.line) if made else holder.site if holder.site.line else SourceLine()
    yield Finding(
        title=f"`{name}` has no bound, and was up to {look.length} items ahead of the training: {mib(look.bytes)}",
        ranks=ranks,
        confidence=POSSIBLE,
        severity=NOTE,
        place=site,
        places=(Place(site, ranks, "is made here"),) if site else (),
        evidence={"variable": name, "items": look.length, "bytes": look.bytes, "step": look.step},
        why=f"{look.tensors} tensors lay in it after step {look.step}; what fills it is faster than what takes from it",
        prescriptions=(
            Prescription(
                "bound-what-is-kept",
                change="give it a bound that its producer waits at: queue.Queue(maxsize=4)",
                effect=f"up to {mib(look.bytes)} less on each of these ranks",
            ),
        ),
    )


def _by_evaluations(memory: Memory) -> Iterator[Finding]:
    """Evaluations that hold every batch's outputs until their end; with a graph behind them that is DD411."""
    by_site: dict[SourceLine, list[KeptByEvaluation]] = defaultdict(list)
    for rank in memory.each():
        one = None if any(each.bytes for each in rank.evaluations) else kept_by_evaluation(rank)
        if one is not None and (one.seen or one.times > 1):
            by_site[one.site].append(one)
    for alike in by_site.values():
        one = max(alike, key=lambda each: (each.seen, each.grown))
        ranks = tuple(each.rank for each in alike)
        users = one.seen and not one.library
        keeping = keeping_line(memory.recording.sources, one.site, one.variable) if users else None
        place = keeping.site if keeping is not None else one.site
        what = f"`{one.variable}`" + (f" of {one.library}" if one.library else "") if one.seen else "an evaluation"
        yield Finding(
            title=f"{what} keeps every batch of an evaluation: {mib(one.grown)} after {one.batches} batches",
            ranks=ranks,
            place=place,
            places=(
                *((Place(place, ranks, keeping.how),) if keeping is not None else ()),
                Place(one.site, ranks, "evaluates"),
            ),
            evidence={
                "variable": one.variable if one.seen else "",
                "bytes": one.grown,
                "bytes_in_variable": one.held,
                "batches": one.batches,
                "bytes_at_end": one.total,
                "bytes_in_training": one.training,
                "evaluations": one.times,
            },
            why=f"the process had {mib(one.total)} there and at most {mib(one.training)} in the training before; it grew in each "
            f"third of the batches, in {one.times} evaluation{'s' * (one.times > 1)}",
            prescriptions=(
                Prescription(
                    "bound-what-is-kept",
                    change=KEEP_LESS if users or not one.library.startswith("transformers/") else KEEP_LESS_IN_TRAINER,
                    effect=f"up to {mib(one.grown)} less at the evaluation's end",
                ),
            ),
            confidence=LIKELY if one.seen else POSSIBLE,
            severity=NOTE,
            at_ns=one.at_ns,
        )


def _growths(memory: Memory, rank: RankMemory) -> list[Growth]:
    """What grows on this rank. A graph hangs together: of several variables with the same past, those that carry it on count."""
    graphs, plain = list[Growth](), list[Growth]()
    for holder in rank.holders:
        graph = bool(holder.graph_growth)
        if not graph and not holder.hook_growth and not _is_plain_growth(holder):
            continue
        sources = memory.recording.sources
        keeping = keeping_line(sources, holder.site, holder.label)
        let_go = is_let_go(sources, holder.site, holder.label)
        looks = holder.graph_growth or holder.hook_growth or holder.plain_growth
        barred = emptied_by_others(sources, holder.site, holder.label, rank.rank) if let_go else None
        growth = Growth(holder, looks, graph, keeping, let_go, barred)
        (graphs if graph else plain).append(growth)
    carriers = [one for one in graphs if one.keeping is not None]
    if not carriers and graphs:
        carriers = [max(graphs, key=lambda one: (one.looks[-1].old_nodes, one.holder.kind != "Tensor"))]
    return carriers + plain


def _is_plain_growth(holder: Holder) -> bool:
    looks = holder.plain_growth
    return (
        bool(looks)
        and looks[-1].step >= LEAST_STEPS
        and looks[-1].bytes - looks[0].bytes >= LEAST_GROWTH
        and looks[-1].tensors > looks[0].tensors
    )


def _finding(growths: Sequence[Growth]) -> Finding:
    one = max(growths, key=lambda growth: (not growth.only_hooks, growth.looks[-1].step))
    ranks = tuple(sorted(growth.holder.rank for growth in growths))
    holder, keeping = one.holder, one.keeping
    place = keeping.site if keeping is not None else holder.site if holder.site.line else SourceLine()
    bounded = None if one.graph or one.only_hooks else _BOUNDED_NAME.search(holder.label)
    title, why = _words(one)
    return Finding(
        title=title,
        ranks=ranks,
        place=place,
        places=(
            *((Place(place, ranks, keeping.how if keeping else f"`{holder.label}` is held here"),) if place else ()),
            *((Place(one.barred[0], (), f"empties it only where `{one.barred[1]}`"),) if one.barred else ()),
        ),
        evidence={
            "variable": holder.label,
            "kind": holder.kind,
            "steps": [look.step for look in one.looks],
            "bytes": [look.bytes + look.saved for look in one.looks],
            "operations": [look.nodes for look in one.looks],
            "bytes_per_step": round(one.bytes_per_step),
        }
        | ({"hooks": [look.length for look in one.looks]} if one.only_hooks else {})
        | ({"tipped_by": [bounded[0]]} if bounded else {}),
        why=why,
        prescriptions=(_cure(one),),
        confidence=POSSIBLE if bounded or one.doubted else CERTAIN if one.graph else LIKELY,
        severity=NOTE if bounded or one.doubted else WARNING,
    )


def _words(one: Growth) -> tuple[str, str]:
    """(the title, why) of a finding about this variable."""
    holder, first, last, size = one.holder, one.looks[0], one.looks[-1], one.bytes_per_step
    if one.graph:
        kept = f"{mib(size)} and {one.nodes_per_step:.0f}" if size >= 1 else f"{one.nodes_per_step:.0f}"
        return f"`{holder.label}` keeps the graph of every step: {kept} more graph nodes every step", (
            f"`{holder.label}` referenced {first.old_nodes} graph nodes of earlier steps after step {first.step}, "
            f"and {last.old_nodes} after step {last.step}"
            + ("; the source lets go of it in a loop, after more steps than were seen" if one.doubted else "")
        )
    if one.only_hooks:
        return (
            f"hooks are registered again and again and stay: {_rate(one.hooks_per_step)}, all run in each pass",
            (
                f"`{holder.site.function}` was a hook of the model's modules {first.length} times after step {first.step}, "
                f"and {last.length} times after step {last.step}; the first module is `{holder.label}`"
            ),
        )
    return f"`{holder.label}` keeps {mib(size)} more every step", (
        f"it held {first.tensors} tensors of {mib(first.bytes)} after step {first.step}, and {last.tensors} of "
        f"{mib(last.bytes)} after step {last.step}, and never less in between; if it is bounded, this run did not reach the bound"
    )


def _rate(hooks_per_step: float) -> str:
    """`2 more every step`; `one more every 24 steps`, as where an evaluation registers it."""
    return (
        f"{hooks_per_step:.3g} more every step"
        if hooks_per_step >= 0.75
        else f"one more every {1 / hooks_per_step:.0f} steps"
    )


def _cure(growth: Growth) -> Prescription:
    keeping, holder = growth.keeping, growth.holder
    if growth.only_hooks:
        effect = f"a call less in each further pass for each hook that stayed ({_rate(growth.hooks_per_step)})"
        return Prescription("bound-what-is-kept", change=REGISTER_ONCE, effect=effect)
    freed = growth.saved_per_step if growth.graph else growth.bytes_per_step
    less = mib(freed) if freed >= 1024 else f"{growth.nodes_per_step:.0f} graph nodes"
    effect = f"{less} less every step, as measured between samples of `{holder.label}`"
    if growth.graph and growth.bytes_per_step - freed >= MIB / 8:
        effect += f"; the {mib(growth.bytes_per_step - freed)} of the tensors in it stay"
    if keeps_hooks(holder.label):
        return Prescription("bound-what-is-kept", change=REGISTER_ONCE, effect=effect)
    if keeping is not None and keeping.error:
        change = (
            f"keep `str({keeping.error})`, or `{keeping.error}.with_traceback(None)`: the exception holds the variables of every "
            "function that it came through"
        )
        return Prescription("bound-what-is-kept", change=change, effect=effect)
    if not growth.graph:
        change = (
            f"empty it on every rank: {growth.barred[0].short} is only reached where `{growth.barred[1]}`"
            if growth.barred
            else ""
        )
        return Prescription("bound-what-is-kept", change=change, effect=effect)
    if keeping is None:
        return Prescription("detach-what-is-kept", effect=effect)
    what = "the tensors in " if _is_container(_expression(keeping.value)) else ""
    change = f"detach {what}`{keeping.value[:60]}` before storing it"
    return Prescription("detach-what-is-kept", change=change, effect=effect, edits=_detached(growth, keeping))


def _detached(growth: Growth, keeping: Keeping) -> tuple[Edit, ...]:
    holder, value, site = growth.holder, keeping.value, keeping.site
    if keeping.how == CARRIES:
        new = f"{holder.label} = {holder.label}.detach()"
        if holder.kind in ("tuple", "list"):
            new = f"{holder.label} = {holder.kind}(state.detach() for state in {holder.label})"
        pad = keeping.text[: len(keeping.text) - len(keeping.text.lstrip())]
        return (rows_replaced(site.path, keeping.last_line + 1, keeping.last_line, [pad + new]),)
    written = _expression(value)
    is_one_tensor = isinstance(written, ast.Name | ast.Attribute | ast.Subscript | ast.Call) and not _is_container(
        written
    )
    if keeping.at < 0 or not is_one_tensor:  # of `a + f(b)` the method would be that of f(b) alone
        return ()
    name = "item" if keeping.how == ADDS and value.isidentifier() and "loss" in value else "detach"
    column = len((keeping.text[: keeping.at] + value).encode())
    return (Edit(site.path, site.line, column, site.line, column, f".{name}()"),)


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _is_container(value: ast.expr | None) -> bool:
    """A tuple, a list, a dict, or a call that makes one: it has no method detach()."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in ("tuple", "list", "dict", "set", "zip", "map")
    return isinstance(value, ast.Tuple | ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.GeneratorExp)


# -- a process that grows ----------------------------------------------------------------------------------------------


def _unseen(rank: RankMemory) -> tuple[str, float, float, int] | None:
    """(what, bytes per step, bytes in all, steps) by which this rank grows, although nothing that was looked at does."""
    rows = rank.steps > 0
    steps = rank.steps[rows]
    if len(steps) < UNSEEN_STEPS:
        return None
    late = slice(len(steps) // 3, None)  # warm-up, optimizer state, first evaluation
    for name, what in (("allocated", "the device's memory"), ("rss", "resident memory")):
        values = rank.column(name)[rows]
        if name == "rss" and rank.on_device:
            continue  # pinned memory and contexts: the device's own numbers say it exactly
        grown = float(np.median(values[-5:]) - np.median(values[late][:5]))
        enough = grown >= max(UNSEEN_GROWTH, UNSEEN_SHARE * float(values[late][0]))
        if enough and grows_steadily(steps[late], values[late]):
            return what, slope(steps[late], values[late]), grown, int(steps[-1] - steps[late][0])
    return None


def _groups_made_again(piled: PiledGroups) -> Finding:
    sets = f"{piled.sets} sets of ranks" if piled.sets > 1 else "the same ranks"
    return Finding(
        title=f"process groups are made again and again and stay: {piled.made} of {sets}",
        ranks=piled.ranks,
        place=piled.site,
        places=(Place(piled.site, piled.ranks, f"makes groups, in {piled.steps} different steps"),),
        evidence={
            "groups": piled.made,
            "sets": piled.sets,
            "steps": piled.of,
            "groups_per_step": round(piled.per_step, 2),
        },
        why=f"new_group was called {piled.made} times in {piled.of} steps, and no group was destroyed; each keeps connections, "
        "threads and descriptors until the process ends, although its owner has forgotten it",
        prescriptions=(
            Prescription(
                "bound-what-is-kept",
                change="make each group once and keep it in a dictionary by its ranks, or call destroy_process_group(group)",
                effect=f"{piled.made - piled.sets} groups less",
            ),
        ),
        confidence=LIKELY,
        at_ns=piled.at_ns,
    )


def _unknown(memory: Memory, unseen: dict[int, tuple[str, float, float, int]]) -> Finding:
    ranks = tuple(sorted(unseen))
    what, rate, grown, steps = max(unseen.values(), key=lambda one: one[1])
    site = memory.ranks[ranks[0]].site
    hooks = hooks_registered_again(memory.recording.sources)
    return Finding(
        title=f"{what} grows by {mib(rate)} every step, but none of the sampled variables does",
        ranks=ranks,
        place=site,
        places=tuple(
            Place(one, ranks, "perhaps: registers a hook each time it runs, which stays until it is removed")
            for one in hooks[:1]
        ),
        evidence={"bytes_per_step": round(rate), "grown_bytes": round(grown), "steps": steps},
        why=f"{mib(grown)} more in the last {steps} steps, at a steady rate; reading a dataset into memory once looks the same",
        prescriptions=(
            Prescription("bound-what-is-kept", change="run `distdoctor check-memory` longer with the same arguments"),
        ),
        confidence=POSSIBLE,
        severity=NOTE,
    )


def sick() -> Recording:
    from distdoctor.testing.memory import memory_job

    looks = {step: {"nodes": 9 * step, "old_nodes": 9 * (step - 3), "bytes": 4} for step in (3, 6, 9, 12)}
    source = "def train():\n    total = 0\n    for batch in loader:\n        total += loss\n        optimizer.step()\n"
    job = memory_job(2).trains(12).holds("total", "train.py:5 train", looks, kind="Tensor")
    return job.recording(sources={"/job/train.py": source})


def healthy() -> Recording:
    """The process grows while it warms up; a loss has a longer graph with each step, made anew each time."""
    from distdoctor.testing.memory import memory_job

    looks = {step: {"nodes": 9 * step, "old_nodes": 0, "bytes": 4} for step in (3, 6, 9, 12, 18, 24, 36, 48)}
    job = memory_job(2).trains(60, rss=lambda rank, step: (400 + min(200, 10 * step)) * MIB)
    return job.holds("loss", "train.py:31 train", looks, kind="Tensor").recording()
