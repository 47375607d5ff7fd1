"""The largest batch that really trains within a budget: predicted, then tried on both sides of the prediction."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from distdoctor.diagnosis.memory.memory import mib
from distdoctor.errors import CouldNotLook, WrongUse
from distdoctor.planning import real_steps
from distdoctor.planning.prediction import Predictor
from distdoctor.workloads.request import TrainingRequest, validate

FINE = 0.02
"""The search ends when what fits and what does not are this share of the batch apart."""
MOST_RUNS = 10


@dataclass(frozen=True)
class BatchLimit:
    """Global batches. `largest` trained within `budget` bytes per rank, `too_large` did not (0: not tried)."""

    strategy: str
    ranks: int
    budget: int
    predicted: int
    largest: int
    too_large: int
    runs: int


def find(
    request: TrainingRequest,
    ranks: int,
    budget: int,
    *,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda _: None,
) -> BatchLimit:
    """Run at the edge.

    CouldNotLook: the training fails for another reason than memory.
    """
    alone = request.strategy in ("single", "dp")
    if alone and ranks > 1:
        raise WrongUse(
            f"{request.strategy} trains in one process, and {ranks} ranks are asked for", way_out="Add --nproc 1."
        )
    predictor = Predictor(request, ranks, device=device)
    unit = predictor.unit
    validate(replace(request, batch_size=unit), ranks)
    tell("predicting")
    predicted = predictor.largest(budget)
    low, high, runs = 0, 0, 0
    batch = max(unit, predicted)
    while runs < MOST_RUNS and batch and (not high or high - low > max(unit, int(FINE * high))):
        runs += 1
        fits = not _runs_short(replace(request, batch_size=batch), ranks, budget)
        tell(f"batch {batch}: {'fits' if fits else 'does not fit'}")
        low, high = (batch, high) if fits else (low, batch)
        batch = _next(low, high, unit)
        if batch in (low, high):
            break
    return BatchLimit(request.strategy, ranks, budget, predicted, low, high, runs)


def _next(low: int, high: int, unit: int) -> int:
    """Between what fits and what does not; a twentieth beyond what fits, or below what does not, while one of them is unknown."""
    if not high:
        return low + max(unit, low // 20 // unit * unit)
    if not low:
        return high - max(unit, high // 20 // unit * unit)
    return (low + high) // 2 // unit * unit


def _runs_short(request: TrainingRequest, ranks: int, budget: int) -> bool:
    samples = real_steps.STEPS * request.batch_size
    if samples > 1 << 20:
        raise CouldNotLook(
            f"a batch of {request.batch_size} samples is more than a trial reads", way_out="Take a smaller budget."
        )
    plant = "distdoctor.planning.limited_memory:plant"
    return real_steps.train(replace(request, limit_bytes=budget), ranks, plant).short


def render(edge: BatchLimit) -> str:
    """The answer first."""
    if not edge.largest:
        return (
            f"no batch fits {mib(edge.budget)} per rank with {edge.strategy} on {edge.ranks} ranks "
            f"(predicted {edge.predicted or 'none'}, {edge.runs} runs)\n"
        )
    beyond = f", {edge.too_large} does not" if edge.too_large else ""
    return (
        f"a batch of {edge.largest} fits {mib(edge.budget)} per rank with {edge.strategy} on {edge.ranks} ranks{beyond} "
        f"(predicted {edge.predicted}, {edge.runs} runs)\n"
    )


def to_json(edge: BatchLimit) -> str:
    """One document, sizes in bytes."""
    return json.dumps({"schema_version": 1, **asdict(edge)}, indent=1) + "\n"
