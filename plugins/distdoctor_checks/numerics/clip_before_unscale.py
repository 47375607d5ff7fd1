"""
DD803 clip-before-unscale: gradients are clipped while they are still multiplied by the GradScaler scale.

What it means    clip_grad_norm_ compares the norm of scaled gradients, thousands of times too large, with a limit meant for
                 unscaled ones.
Why it hurts     Every step is clipped to limit / scale: training becomes very slow, and slower whenever the scale grows.
How we know      The clip was called between scaler.scale(loss).backward() and the scaler's step, without unscale_ before it.
What to do       Call scaler.unscale_(optimizer) before clip_grad_norm_. The scaler's step does not unscale again.
When it is fine  A limit that is multiplied by the scale on purpose: accept it with --ignore DD803.
Source           PyTorch, Automatic Mixed Precision examples, "Gradient clipping".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.source.call_edits import function_of, methods_called
from distdoctor.diagnosis.source.edits import Edit, row_inserted
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Clipped

CLIPS = {"norm": "clip_grad_norm_", "value": "clip_grad_value_"}  # by what is on record


@check("DD803", "clip-before-unscale", severity=ERROR, stands_alone=True)
def examine(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    found: dict[SourceLine, list[tuple[int, int, str, int]]] = {}
    for rank, own in gradients.ranks.items():
        for clipped in own.events(Clipped):
            if clipped.scaled:
                row = (rank, clipped.step, clipped.by, clipped.at_ns)
                found.setdefault(clipped.site, []).append(row)
    for site, rows in found.items():
        ranks = tuple(sorted({rank for rank, *_ in rows}))
        yield Finding(
            title=f"{CLIPS.get(rows[0][2], rows[0][2])} clips gradients while they are still scaled, first in step {rows[0][1]}",
            ranks=ranks,
            place=site,
            places=(Place(site, ranks, "clips scaled gradients"),),
            evidence={"step": rows[0][1], "clips": rows[0][2]},
            why="scaler.unscale_ was not called between backward and this line, so max_norm is "
            "compared with gradients multiplied by the loss scale",
            prescriptions=(
                Prescription(
                    "unscale-first", change="scaler.unscale_(optimizer)  # first", edits=_edits(sources, site)
                ),
            ),
            confidence=CERTAIN,
            at_ns=rows[0][3],
        )


def _edits(sources: Sources, site: SourceLine) -> tuple[Edit, ...]:
    """`scaler.unscale_(optimizer)` above the clip, by the names of the one `scaler.step(optimizer)` in its function."""
    around = function_of(sources.texts, site)
    if around is None:
        return ()
    scalers = {receiver for _, receiver in methods_called(around, "scale")}
    steps = [
        (receiver, ast.unparse(call.args[0]))
        for call, receiver in methods_called(around, "step")
        if receiver in scalers and len(call.args) == 1
    ]
    if len(set(steps)) != 1:
        return ()
    scaler, optimizer = steps[0]
    return row_inserted(site.path, sources.texts[site.path], site.line, f"{scaler}.unscale_({optimizer})")


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial().note(Clipped("norm", scaled=True, step=1), site="train.py:32 train")
    return job.step(scale=1024.0).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial().note(Clipped("norm", scaled=False, step=1), site="train.py:32 train")
    return job.step(scale=1024.0).recording()
