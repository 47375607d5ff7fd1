"""Reference trainings in ranks of the fork server, for tests: requests by name, results as values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jobs import run_ranks, values

import distdoctor_strategies as plugin
from distdoctor.workloads.request import TrainingRequest, make_request, validate

STRATEGIES = {strategy.name: strategy for strategy in plugin.distdoctor_strategies()}

DOUBLE = "reference_training:in_double"


def request(strategy: str, **options: Any) -> TrainingRequest:
    """What `--strategy NAME` with these options asks for, on the CPU."""
    model = options.pop("factory", None)
    made = make_request(
        STRATEGIES[strategy],
        options,
        models=plugin.distdoctor_models(),
        sources=plugin.distdoctor_data(),
        backend="gloo",
    )
    return replace(made, model=model) if model else made


def train(
    strategy: str,
    world_size: int,
    *,
    timeout: float = 120,
    drills: tuple[str, ...] = (),
    result: str | None = None,
    **options: Any,
) -> Any:
    """Train with real ranks; returns each rank's result."""
    asked = replace(request(strategy, **options), drills=drills, result=result)
    validate(asked, world_size)
    return values(run_ranks(train_rank, world_size, asked.to_json(), timeout=timeout))


def train_rank(rank: int, world_size: int, text: str) -> dict[str, Any]:
    """One rank of a training, that meets the others over a file."""
    from distdoctor.workloads.result import result_of
    from distdoctor.workloads.train import train as train_here
    from distdoctor.workloads.training import Training

    training = Training(TrainingRequest.from_json(text))
    results: list[dict[str, Any]] = []
    training.on("training_end", lambda training: results.append(result_of(training)))  # the model is freed after that
    train_here(training)
    return results[0] if results else result_of(training)


def measured_rank(rank: int, world_size: int, text: str, folder: str) -> None:
    """One rank of a training that writes down what it allocates, into this folder."""
    train_rank(rank, world_size, replace(TrainingRequest.from_json(text), result=folder).to_json())


def losses(result: dict[str, Any]) -> list[float]:
    """The global loss of each step, exact to the last bit."""
    return [float.fromhex(loss) for loss in result["losses"]]


def in_double(shapes: Any) -> Any:
    """The reference mlp in float64, where rounding is a billion times smaller than any mistake."""
    from distdoctor.workloads.models.mlp import make

    model = make(shapes).double()
    model.entrance.register_forward_pre_hook(as_double)
    return model


def as_double(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inputs as float64."""
    return (arguments[0].double(),)


def normalised() -> Any:
    """A model whose layers see the statistics of a batch: a rank's share of one gives others."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
