"""
DD805 low-precision-reduction: gradients are averaged in a lower precision than they are computed in.

What it means    A communication hook, reduce_dtype or a manual cast sends gradients in 16 bits, while parameters and gradients
                 have 32.
Why it hurts     It halves the traffic and rounds every gradient to three or four digits (bfloat16: two or three). Usually this
                 is intended and harmless; with many ranks, small gradients or a long accumulation it is not.
How we know      A few elements of two gradients are sampled on each rank before the reduction and again at the optimizer step:
                 the reduced value is their mean and always fits into 16 bits, but the values that the ranks computed do not.
What to do       Keep it if the measured error is far below the noise of the batch; otherwise reduce in 32 bits.
When it is fine  Nearly always, so it is a note that reports the size of the error.
Source           torch.distributed.algorithms.ddp_comm_hooks.default_hooks; MixedPrecisionPolicy(reduce_dtype=...).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, NOTE, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import OBSERVED, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import same_ranks
from distdoctor.diagnosis.replicas.wording import line_with
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import SPOTS

ROUNDING = 0.02  # relative: of 16 bits it is less; what is further from the mean has been made in another way
ENOUGH = 8  # elements that fit; by chance one in 65,536 does
SMALLEST = 1e-30  # what is nearer to zero fits into anything, or into nothing


@dataclass(frozen=True)
class Element:
    """One element of one gradient in one step: what each rank computed, and what was used."""

    own: tuple[float, ...]
    used: float

    @property
    def error(self) -> float:
        """Against the mean of what the ranks computed, relative to their size."""
        size = sum(map(abs, self.own)) / len(self.own)
        return abs(self.used - sum(self.own) / len(self.own)) / size


_OF_SPOTS = ["tensor", "step", *(f"{name}_{spot}" for name in ("own", "used") for spot in range(SPOTS))]


@check("DD805", "low-precision-reduction", severity=NOTE, live=False)
def examine(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    for peers in gradients.peers:
        if peers.by == OBSERVED:
            continue
        elements = list(_elements(gradients, peers))
        for dtype, fits in (("bfloat16", _fits_bfloat16), ("float16", _fits_float16)):
            rounded = len(elements) >= ENOUGH and all(fits(one.used) and one.error < ROUNDING for one in elements)
            computed = [value for one in elements for value in one.own]
            if rounded and sum(map(fits, computed)) * 2 < len(computed):
                yield _finding(gradients, peers, elements, dtype, sources)
                break


def _elements(gradients: Gradients, peers: ReplicaGroup) -> Iterator[Element]:
    """Of gradients in 32 bits that all these ranks have reduced to the same bits."""
    by_place: dict[tuple[str, int, int], dict[int, tuple[float, float]]] = defaultdict(dict)
    for rank in peers.ranks:
        own = gradients.ranks.get(rank)
        for number, step, *spots in own.log.rows("spots")[_OF_SPOTS].tolist() if own is not None else ():
            tensor = own.tensors.get(number) if own is not None and step <= own.until else None
            if tensor is None or tensor.optimizer != peers.optimizer or not same_ranks(tensor.grad_agree, peers.lane):
                continue
            for spot in range(SPOTS if tensor.dtype == "float32" else 0):
                by_place[tensor.name, step, spot][rank] = spots[spot], spots[SPOTS + spot]
    for values in by_place.values():
        used = {use for _, use in values.values()}
        own_values = tuple(value for value, _ in values.values())
        sizes = [*map(abs, own_values), *map(abs, used)]
        if (
            len(values) == len(peers.ranks)
            and len(used) == 1
            and min(sizes) > SMALLEST
            and all(map(math.isfinite, sizes))
        ):
            yield Element(own_values, used.pop())


def _fits_bfloat16(value: float) -> bool:
    return int(np.float32(value).view(np.uint32)) & 0xFFFF == 0


def _fits_float16(value: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float16(value)) == value


def _finding(
    gradients: Gradients, peers: ReplicaGroup, elements: list[Element], dtype: str, sources: Sources
) -> Finding:
    update = next(u for updates in gradients.updates(peers).values() for u in updates if u.step)
    line = line_with(sources.texts, update.site, "register_comm_hook") or update.site
    errors = [one.error for one in elements]
    return Finding(
        title=f"gradients are averaged in {dtype} over {named(peers.ranks)}, with a relative error of {median(errors):.1e}",
        ranks=peers.ranks,
        place=line,
        places=(Place(line, peers.ranks, "the hook" if line != update.site else "the optimizer steps"),),
        evidence={
            "dtype": dtype,
            "median_error": median(errors),
            "largest_error": max(errors),
            "elements": len(elements),
            "replicas_by": peers.by,
        },
        why=f"{len(elements)} reduced elements all fit into {dtype}, but those that the ranks computed do not; "
        f"they differ from the mean by {median(errors):.1e} (largest {max(errors):.1e})",
        prescriptions=(Prescription("reduce-in-full-precision"),),
        confidence=CERTAIN,
        at_ns=update.at_ns,
    )


def _job(used: list[float]) -> Recording:
    from distdoctor.testing.gradients import trained_job

    own = {0: [0.1, 0.7, 0.3, 0.9], 1: [0.3, 0.5, 0.2, 0.4]}
    job = trained_job(2).initial()
    for step in (1, 2):
        job.step().spot(
            step, own={rank: [float(np.float32(v)) for v in values] for rank, values in own.items()}, used=used
        )
    return job.recording()


def sick() -> Recording:
    return _job([0.2001953125, 0.6015625, 0.25, 0.6484375])


def healthy() -> Recording:
    return _job([float(np.float32(value)) for value in (0.2, 0.6, 0.25, 0.65)])
