"""Predicted against measured peak memory: reference models x strategies x batches, each really trained in its own processes.

    python benchmarks/memory_prediction.py [--quick] [--ranks 2]

Measured is the most that torch's CPU allocator held on a rank, over setup, the first step and the median of later steps; each
rank is a point. Ranks talk over gloo, whose threads give buffers back when they get round to it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

from distdoctor import plugins
from distdoctor.errors import CouldNotLook
from distdoctor.planning import memory_results, real_steps
from distdoctor.planning.prediction import predict, traced
from distdoctor.workloads.request import TrainingRequest, make_request

PLANT = "distdoctor.planning.measured_memory:plant"
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "single": ("single", {}),
    "single sgd": ("single", {"optimizer": "sgd"}),
    "single checkpoint": ("single", {"checkpoint_activations": True}),
    "single bf16": ("single", {"precision": "bf16"}),
    "ddp": ("ddp", {}),
    "ddp accumulate": ("ddp", {"accumulate": 2}),
    "ddp zero": ("ddp", {"shard_optimizer": True}),
    "fsdp": ("fsdp", {}),
    "fsdp checkpoint": ("fsdp", {"checkpoint_activations": True}),
    "fsdp offload": ("fsdp", {"offload": True}),
    "fsdp bf16": ("fsdp", {"precision": "bf16"}),
}
MODELS = ("mlp", "gpt", "convnet", "resnet18")
BATCHES = (16, 64)


def points(ways: list[str], models: list[str], batches: tuple[int, ...]) -> Iterator[tuple[str, str, int]]:
    """Way, model and batch of each training."""
    for batch, way, model in itertools.product(batches, ways, models):
        yield way, model, batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--quick", action="store_true", help="one batch")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long")
    options = parser.parse_args()
    found = plugins.load()
    errors: dict[str, list[float]] = {}
    began = time.monotonic()
    print(
        f"{'way':18}{'model':10}{'batch':>6}{'ranks':>6}{'predicted MB':>14}{'measured MB':>22}{'error':>18}  predicted in",
        flush=True,
    )
    for way, model, batch in points(
        options.ways.split(","), options.models.split(","), BATCHES[:1] if options.quick else BATCHES
    ):
        if time.monotonic() - began > options.seconds:
            break
        name, given = WAYS[way]
        ranks = 1 if name == "single" else options.ranks
        request = make_request(
            found.strategies[name],
            {"model": model, "batch_size": batch, **given},
            models=found.models.values(),
            sources=found.data.values(),
            backend="gloo",
        )
        try:
            show(way, model, request, ranks, errors)
        except CouldNotLook as trouble:  # resnet18 with recomputation: its ReLUs work in place
            print(f"{way:18}{model:10}{batch:6}{ranks:6}  not possible: {str(trouble)[:90]}", flush=True)
    report(errors)


def show(way: str, model: str, request: TrainingRequest, ranks: int, errors: dict[str, list[float]]) -> None:
    """One row; its errors are added under the strategy's name."""
    started = time.monotonic()
    prediction = predict(request, ranks)
    seconds = time.monotonic() - started
    predicted = [prediction.total_bytes] * ranks
    if request.options.get("shard_optimizer"):  # the ranks share parameters out whole, and not evenly
        predicted = [traced(request, ranks, rank=rank).peak().bytes for rank in range(ranks)]
    measured = [memory_results.typical_peak(one) for one in real_steps.train(request, ranks, PLANT).by_rank.values()]
    apart = [own / peak - 1 for own, peak in zip(predicted, measured, strict=True)]
    errors.setdefault(request.strategy, []).extend(apart)
    print(
        f"{way:18}{model:10}{request.batch_size:6}{ranks:6}{predicted[0] / 1e6:14.3f}"
        f"{' / '.join(f'{peak / 1e6:.3f}' for peak in measured):>22}"
        f"{' / '.join(f'{error:+.2%}' for error in apart):>18}  {seconds:.1f} s",
        flush=True,
    )


def report(errors: dict[str, list[float]]) -> None:
    """Median and 95th percentile of the absolute errors, by strategy and of all."""
    for name, these in [*errors.items(), ("all", [error for one in errors.values() for error in one])]:
        sizes = sorted(abs(error) for error in these)
        if sizes:
            at_95 = sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))]
            words = f"median {statistics.median(sizes):.2%}, 95th percentile {at_95:.2%}, worst {sizes[-1]:.2%}"
            print(f"{name:8} {len(sizes):3} points: {words}")


if __name__ == "__main__":
    main()
