"""Whether gradients that are not the same bits are the same numbers but for rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.tensor_differences import GRADS, TensorDifference, differences_of
from distdoctor.recording.trace.layout import SPOTS

# Between 1 and the next number that the type holds (IEEE 754, bfloat16).
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDINGS = 256  # of the type's own: what products and sums of some thousand terms add up to


def rounding_error(gradients: Gradients, parting: ReplicaDivergence) -> float | None:
    """The largest relative difference that is known between the gradients of a parting, where it is no more than rounding.

    The norms of all of them have to agree, then and at the last look, and the elements that were kept of at least one: those
    tell a turned sign or another order. None where they do not, or where no elements were kept from that step on.
    """
    if not parting.differences:
        return None
    last = max(
        (u.step for u in gradients.updates(parting.peers)[min(parting.updates)] if u.digested), default=parting.step
    )
    later, _, _ = differences_of(gradients, parting.peers, GRADS, last, list(parting.updates))
    norms = [(one, list(one.norms.values())) for one in (*parting.differences, *later)]
    elements = [(one, values) for one in parting.differences for values in _elements(gradients, parting, one)]
    largest = 0.0
    for difference, values in (*norms, *elements):
        apart = _apart(values, difference.typical)
        if not apart <= _ROUNDINGS * _EPSILON.get(difference.tensor.dtype, 0.0):  # NaN is not
            return None
        largest = max(largest, apart)
    return largest if elements else None


def _apart(values: Sequence[float], least: float) -> float:
    """The distance between the smallest and the largest, relative to the largest magnitude, or to `least` where that is more."""
    size = max(least, *map(abs, values))
    return (max(values) - min(values)) / size if size else 0.0


def _elements(
    gradients: Gradients, parting: ReplicaDivergence, difference: TensorDifference
) -> Iterator[tuple[float, ...]]:
    """The elements that were kept of one gradient as the optimizer used it: each on every rank, from this step on."""
    kept = []
    for rank in parting.updates:
        own = gradients.ranks[rank]
        info = own.info(difference.name, parting.peers.optimizer)
        rows = own.log.rows("spots")
        mine = rows[(rows["step"] >= parting.step) & (rows["tensor"] == info.seq)] if info is not None else ()
        kept.append({int(row["step"]): [float(row[f"used_{spot}"]) for spot in range(SPOTS)] for row in mine})
    for step in sorted(set.intersection(*map(set, kept))):
        yield from zip(*(own[step] for own in kept), strict=True)
