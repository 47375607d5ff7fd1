"""
DD410 retained-graph: an autograd graph outlives its step and keeps its activations alive.

What it means    A variable still holds the graph of backward(retain_graph=True), or an output that never went through backward,
                 when the next forward begins: the activations of two steps are in memory at once.
Why it hurts     Peak activation memory doubles, which often decides whether a batch fits.
How we know      After the optimizer step the graph behind the variable still holds the tensors saved for backward, sample after
                 sample. Backward without retain_graph frees them.
What to do       Omit retain_graph=True if there is no second backward; compute untrained parts under no_grad; `del` the
                 variable before the next forward.
When it is fine  Several backward passes through one graph: the last one frees it. Less than a MiB. Several optimizers, as of a
                 GAN: between their steps a graph may wait for the next one.
Source           torch.autograd.backward, retain_graph.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, NOTE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.memory.memory import MIB, Holder, Memory, mib
from distdoctor.recording.recording import Recording, SourceLine

LEAST_BYTES = MIB
LOOKS = 3
WORTH_A_WARNING = 64 * MIB


@check("DD410", "retained-graph", severity=WARNING, stands_alone=True)
def examine(memory: Memory) -> Iterator[Finding]:
    by_key: dict[tuple[str, str, str], list[Holder]] = defaultdict(list)
    for rank in memory.each():
        if any(holder.graph_growth for holder in rank.holders):
            continue  # DD401: what grows is kept as well
        if len({*rank.log.rows("updates")["optimizer"].tolist()}) > 1:
            continue  # they take turns: what is alive between their steps may be for the next one (a generator's images)
        kept = [holder for holder in rank.holders if _outlives(holder)]
        if kept:  # several variables of one forward have one graph
            largest = max(kept, key=lambda one: (one.looks[-1].saved, one.label == "loss"))
            by_key[largest.key].append(largest)
    for holders in by_key.values():
        yield _finding(memory, holders)


def _outlives(holder: Holder) -> bool:
    """Whether a graph that is made anew in each step still held its activations at the end of every one of them."""
    looks = holder.looks[-LOOKS:]
    return len(looks) == LOOKS and all(look.saved >= LEAST_BYTES and not look.old_nodes for look in looks)


def _finding(memory: Memory, holders: list[Holder]) -> Finding:
    ranks = tuple(sorted(holder.rank for holder in holders))
    one = max(holders, key=lambda holder: holder.looks[-1].saved)
    size = one.looks[-1].saved
    retaining = _retaining_line(memory, one.site)
    place = retaining or one.site
    return Finding(
        title=f"`{one.label}` keeps its autograd graph alive after the step, holding {mib(size)}",
        ranks=ranks,
        place=place,
        places=(Place(place, ranks, "keeps the graph" if retaining else f"`{one.label}` is held here"),),
        evidence={"variable": one.label, "saved_bytes": [look.saved for look in one.looks]},
        why="it still held the tensors saved for backward after steps "
        f"{', '.join(str(look.step) for look in one.looks[-LOOKS:])}",
        prescriptions=(
            Prescription(
                "let-the-graph-go",
                change="omit retain_graph=True" if retaining else f"`del {one.label}` at the end of the step",
                effect=f"{mib(size)} less at the next forward's peak, as counted in the graph",
            ),
        ),
        confidence=CERTAIN,
        severity=WARNING if size >= WORTH_A_WARNING else NOTE,
    )


def _retaining_line(memory: Memory, site: SourceLine) -> SourceLine | None:
    lines = memory.recording.sources.get(site.path, "").splitlines()
    near = [n for n, text in enumerate(lines, 1) if re.search(r"\bretain_graph\s*=\s*(?!False|None)", text)]
    if not near or not site.line:
        return None
    line = min(near, key=lambda n: abs(n - site.line))
    return SourceLine(site.path, line, site.function) if abs(line - site.line) <= 40 else None


def sick() -> Recording:
    from distdoctor.testing.memory import memory_job

    looks = {step: {"nodes": 12, "saved": 96 * MIB, "bytes": 4} for step in (3, 6, 9, 12)}
    source = "def train():\n    loss.backward(retain_graph=True)\n    optimizer.step()\n"
    job = memory_job(2).trains(12).holds("loss", "train.py:3 train", looks, kind="Tensor", flags=4)
    return job.recording(sources={"/job/train.py": source})


def healthy() -> Recording:
    """The variable is still there; what its graph had kept is freed."""
    from distdoctor.testing.memory import memory_job

    looks = {step: {"nodes": 12, "saved": 0, "bytes": 4} for step in (3, 6, 9, 12)}
    return memory_job(2).trains(12).holds("loss", "train.py:3 train", looks, kind="Tensor", flags=4).recording()
