"""What a reference training is asked to do: one value that the launcher writes and every rank reads.

Nothing here imports torch, so the command line can build, check and explain a request within milliseconds.
"""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from distdoctor.errors import WrongUse
from distdoctor.offers import DataSource, Model, Option, Strategy

PRECISIONS = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "sgd")

COMMON_OPTIONS: tuple[Option, ...] = (
    Option("epochs", "Times the whole training set is read.", int, 5),
    Option("steps", "Stop after this many optimizer steps in all (0: when the epochs are over).", int, 0),
    Option("batch-size", "Samples per optimizer step over all ranks, so that every strategy trains the same.", int, 32),
    Option("accumulate", "Micro-steps whose gradients one optimizer step adds up.", int, 1),
    Option(
        "sync-every-micro-step", "Average gradients in every micro-step; without it, only in the last one.", bool, False
    ),
    Option("precision", "Arithmetic of forward and backward (default: fp32; amp: fp16).", str, None, PRECISIONS),
    Option(
        "checkpoint-activations", "Recompute each block's activations in backward instead of keeping them.", bool, False
    ),
    Option("offload", "Keep parameters and optimizer state in host memory (fsdp, hybrid).", bool, False),
    Option("optimizer", "The optimizer.", str, "adamw", OPTIMIZERS),
    Option("lr", "Learning rate.", float, 1e-3),
    Option("seed", "Seed of the weights and of the order of the samples.", int, 0),
    Option("workers", "DataLoader worker processes per rank.", int, 0),
    Option(
        "save", "Write a checkpoint here after every epoch (a file, or a folder when the state is sharded).", str, None
    ),
    Option("resume", "Go on from a checkpoint that --save wrote.", str, None),
    Option("evaluate", "Measure the accuracy on the test set after every epoch.", bool, True),
)
"""The options that every strategy understands. A bool whose default is True is a flag that is switched off (`--no-evaluate`)."""


@dataclass(frozen=True)
class TrainingRequest:
    """One reference training, complete: whoever holds it needs no command line and no plugin to train."""

    strategy: str
    """The strategy's name, for messages."""
    train: str
    """`package.module:function` of the strategy, called with the `Training` in every rank."""
    model: str = "distdoctor.workloads.models.mlp:make"
    """`package.module:factory` of the model, called with the data's `Shapes`, or with nothing if it takes nothing."""
    data: str = "distdoctor.workloads.data.digits:make"
    """`package.module:factory` of the data: `(training set, test set)`; called with `data_path` unless it takes nothing."""
    data_path: str | None = None
    """The text after the colon of `--data name:PATH`."""
    drills: tuple[str, ...] = ()
    """`package.module:function` of each illness to plant, called with the `Training` before the rank joins the others."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The strategy's own options, by key."""
    backend: str | None = None
    """gloo trains on the CPU, nccl on the GPU of this rank; None: nccl where there is a GPU."""
    result: str | None = None
    """Folder into which each rank writes `result-<rank>.json` at the end, and what is planted its measurements."""
    limit_bytes: int = 0
    """What `planning.limited_memory`, planted, lets a rank take for its model and everything after it."""

    epochs: int = 5
    steps: int = 0
    batch_size: int = 32
    accumulate: int = 1
    sync_every_micro_step: bool = False
    precision: str | None = None
    checkpoint_activations: bool = False
    offload: bool = False
    optimizer: str = "adamw"
    lr: float = 1e-3
    seed: int = 0
    workers: int = 0
    save: str | None = None
    resume: str | None = None
    evaluate: bool = True

    def to_json(self) -> str:
        """The request as the text that `from_json` reads."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> TrainingRequest:
        """The request that `to_json` wrote; a key that does not exist is an error with its name."""
        values = json.loads(text)
        unknown = sorted(values.keys() - {f.name for f in fields(cls)})
        if unknown:
            raise WrongUse(
                f"the training request holds {', '.join(unknown)}, which no training knows",
                way_out="Start the ranks with the distdoctor that wrote the request: launcher and ranks differ in version.",
            )
        return cls(**{**values, "drills": tuple(values.get("drills", ()))})

    def write(self, path: str | Path) -> None:
        """Write the request where `read` finds it."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> TrainingRequest:
        """The request in this file."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def make_request(
    strategy: Strategy,
    values: Mapping[str, Any],
    *,
    models: Iterable[Model],
    sources: Iterable[DataSource],
    drills: Iterable[str] = (),
    backend: str | None = None,
    result: str | None = None,
) -> TrainingRequest:
    """The request that a command line asks for.

    `values` are the options by key: those of `COMMON_OPTIONS`, those of the strategy, and `model` and `data` as the user
    wrote them (`gpt`, `mnist:/data`, `mylab.nets:small`). A value of None, or none at all, is the option's default.
    """
    given = {key: value for key, value in values.items() if value is not None}
    own = {option.key: given.pop(option.key, option.default) for option in strategy.options}
    model, usual_data = model_named(given.pop("model", "mlp"), models)
    data, data_path = data_named(given.pop("data", usual_data), sources)
    common = {option.key for option in COMMON_OPTIONS}
    for key in given.keys() - common:
        flag = key.replace("_", "-")
        raise WrongUse(
            f"strategy {strategy.name} has no option --{flag}",
            way_out=f"`distdoctor run --strategy {strategy.name} --help` lists those it has.",
        )
    return TrainingRequest(
        strategy=strategy.name,
        train=strategy.train,
        model=model,
        data=data,
        data_path=data_path,
        drills=tuple(drills),
        options=own,
        backend=backend,
        result=result,
        **given,
    )


def model_named(text: str, models: Iterable[Model]) -> tuple[str, str]:
    """The factory that `--model TEXT` names, and the data set that it is used with unless `--data` says otherwise."""
    by_name = {model.name: model for model in models}
    if text in by_name:
        return by_name[text].make, by_name[text].data
    if _is_reference(text):
        return text, "digits"
    raise _unknown("model", text, by_name)


def data_named(text: str, sources: Iterable[DataSource]) -> tuple[str, str | None]:
    """The factory that `--data TEXT` names, and the path after its colon if there is one."""
    by_name = {source.name: source for source in sources}
    name, _, path = text.partition(":")
    if name in by_name:
        source = by_name[name]
        if source.needs_path and not path:
            raise WrongUse(
                f"--data {name} needs to know where the data set lies",
                way_out=f"Write --data {name}:PATH; nothing is ever downloaded.",
            )
        return source.make, path or None
    if _is_reference(text):
        return text, None
    raise _unknown("data", text, by_name)


def validate(request: TrainingRequest, world_size: int) -> None:
    """Raise WrongUse where the request cannot be trained by this many ranks, before a rank is started.

    Besides what holds for all strategies, it calls the `validate(request, world_size)` that stands beside the strategy's
    `train`, if there is one.
    """
    _validate_common(request)
    own = getattr(importlib.import_module(request.train.partition(":")[0]), "validate", None)
    if own is not None:
        own(request, world_size)


def require_even_shares(request: TrainingRequest, shares: int) -> None:
    """Raise WrongUse unless the global batch divides into equal micro-batches for this many data-parallel shares."""
    parts = shares * request.accumulate
    if request.batch_size % parts:
        nearest = max(parts, request.batch_size - request.batch_size % parts)
        raise WrongUse(
            f"a batch of {request.batch_size} samples does not divide among {shares} data-parallel ranks "
            f"x {request.accumulate} micro-steps = {parts} equal micro-batches",
            way_out=f"Take a multiple of {parts}, such as --batch-size {nearest}.",
        )


def refuse_offload(request: TrainingRequest) -> None:
    """Raise WrongUse if the request asks for offloading, which this strategy cannot do."""
    if request.offload:
        raise WrongUse(
            f"--offload keeps shards of the parameters in host memory, and {request.strategy} does not shard them",
            way_out="Use --strategy fsdp --offload, or --checkpoint-activations to save activation memory.",
        )


def _validate_common(request: TrainingRequest) -> None:
    for name, least in (("epochs", 1), ("steps", 0), ("batch_size", 1), ("accumulate", 1), ("workers", 0)):
        value = getattr(request, name)
        if value < least:
            raise WrongUse(f"--{name.replace('_', '-')} is {value}", way_out=f"Take at least {least}.")
    if request.precision is not None and request.precision not in PRECISIONS:
        raise WrongUse(f"there is no precision {request.precision!r}", way_out=f"Choose from {', '.join(PRECISIONS)}.")
    if request.optimizer not in OPTIMIZERS:
        raise WrongUse(f"there is no optimizer {request.optimizer!r}", way_out=f"Choose from {', '.join(OPTIMIZERS)}.")
    if request.resume and not Path(request.resume).exists():
        raise WrongUse(
            f"there is no checkpoint at {request.resume}",
            way_out="Point --resume at what --save of an earlier run wrote.",
        )


def _is_reference(text: str) -> bool:
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _unknown(what: str, text: str, known: Iterable[str]) -> WrongUse:
    names = sorted(known)
    close = difflib.get_close_matches(text.partition(":")[0], names, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    return WrongUse(
        f"there is no {what} named {text}",
        way_out=f"{guess}There are {', '.join(names)}; your own is --{what} package.module:factory.",
    )
