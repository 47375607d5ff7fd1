"""The remedies against too little memory that distdoctor can put on a reference training itself: what each changes in it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from distdoctor.errors import WrongUse
from distdoctor.offers import Strategy
from distdoctor.planning import zeroed_gradients
from distdoctor.workloads.request import TrainingRequest, validate

Strategies = Mapping[str, Strategy]
OF_BUCKETS = ("gradient-as-bucket-view", "make-buckets-lazily", "set-gradients-to-none")
"""Tried on DistributedDataParallel as torch makes it: gradients that lie in its buckets stay there in any case."""
MICRO_STEPS = 4
"""Where no accumulation is asked for, no_sync is tried on this many micro-steps."""
ZEROED = zeroed_gradients.PLANT
"""What the remedy set-gradients-to-none undoes: gradients that are filled with zeros instead of being given back."""


@dataclass(frozen=True)
class MemoryRemedy:
    """One change. `slug` is the remedy's; `flags` is how to ask for it on the command line."""

    slug: str
    flags: str
    change: Callable[[TrainingRequest, Strategies], TrainingRequest]

    def applied(self, request: TrainingRequest, strategies: Strategies) -> TrainingRequest:
        """The request with the change.

        WrongUse: it has it already, or its strategy does not know it.
        """
        changed = self.change(request, strategies)
        if changed == request:
            raise WrongUse(
                f"the training has {self.slug} already", way_out="Leave that option out to see what the remedy saves."
            )
        return changed


def with_strategy(request: TrainingRequest, strategy: Strategy, **options: Any) -> TrainingRequest:
    """The same training another way, with the strategy's own options at their defaults but for those given."""
    kept = {option.key: option.default for option in strategy.options}
    return replace(request, strategy=strategy.name, train=strategy.train, options={**kept, **options})


def _fully_shard(request: TrainingRequest, strategies: Strategies) -> TrainingRequest:
    return request if request.strategy == "fsdp" else with_strategy(request, strategies["fsdp"])


def _offload(request: TrainingRequest, strategies: Strategies) -> TrainingRequest:
    return replace(_fully_shard(request, strategies), offload=True)


def _half(request: TrainingRequest, _: Strategies) -> TrainingRequest:
    return request if request.precision == "bf16" else replace(request, precision="bf16")


def _option(name: str, value: object, strategy: str) -> Callable[[TrainingRequest, Strategies], TrainingRequest]:
    def change(request: TrainingRequest, _: Strategies) -> TrainingRequest:
        if name not in request.options:
            raise WrongUse(
                f"strategy {request.strategy} has no option {name.replace('_', '-')}",
                way_out=f"Add --strategy {strategy}, the strategy that this remedy is for.",
            )
        return replace(request, options={**request.options, name: value})

    return change


def _expand(request: TrainingRequest, _: Strategies) -> TrainingRequest:
    raise WrongUse(
        "expand-segments changes how CUDA's allocator reserves memory, not what a training allocates: that cannot be predicted",
        way_out="Run the job on the GPU with and without PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True under "
        "`distdoctor check-memory`, and compare what is reserved.",
    )


CURES = {
    cure.slug: cure
    for cure in (
        MemoryRemedy(
            "checkpoint-activations",
            "--checkpoint-activations",
            lambda request, _: replace(request, checkpoint_activations=True),
        ),
        MemoryRemedy("mixed-precision", "--precision bf16", _half),
        MemoryRemedy("fully-shard", "--strategy fsdp", _fully_shard),
        MemoryRemedy("offload-to-host", "--strategy fsdp --offload", _offload),
        MemoryRemedy(
            "halve-the-micro-batch",
            "--accumulate N",
            lambda request, _: replace(request, accumulate=2 * request.accumulate),
        ),
        MemoryRemedy("shard-the-optimizer", "--shard-optimizer", _option("shard_optimizer", True, "ddp")),
        MemoryRemedy(
            "gradient-as-bucket-view", "--gradient-as-bucket-view", _option("gradient_as_bucket_view", True, "ddp")
        ),
        MemoryRemedy("make-buckets-lazily", "--lazy-bucket-allocation", _option("lazy_bucket_allocation", True, "ddp")),
        MemoryRemedy("no-sync", "", lambda request, _: replace(request, sync_every_micro_step=False)),
        MemoryRemedy("expand-segments", "", _expand),
        MemoryRemedy(
            "set-gradients-to-none",
            "",
            lambda request, _: replace(request, drills=tuple(d for d in request.drills if d != ZEROED)),
        ),
    )
}
"""By slug."""


def cure_named(slug: str) -> MemoryRemedy:
    """The cure; WrongUse lists those there are."""
    if slug not in CURES:
        close = difflib.get_close_matches(slug, CURES, n=1)
        guess = f"Did you mean {close[0]}? " if close else ""
        raise WrongUse(f"there is no remedy {slug} to try", way_out=f"{guess}There are {', '.join(CURES)}.")
    return CURES[slug]


def tried(
    slug: str, request: TrainingRequest, ranks: int, strategies: Strategies
) -> tuple[TrainingRequest, TrainingRequest]:
    """(the training without the remedy, the training with it), both possible on this many ranks.

    Where the training has the remedy by default, "without" leaves it out.
    """
    cure = cure_named(slug)
    without = request
    if slug in OF_BUCKETS and "gradient_as_bucket_view" in request.options:
        without = replace(request, options={**request.options, "gradient_as_bucket_view": False})
    if slug == "set-gradients-to-none":
        without = replace(without, drills=(*request.drills, ZEROED))
    if slug == "no-sync":
        without = replace(request, accumulate=max(MICRO_STEPS, request.accumulate), sync_every_micro_step=True)
    cured = cure.applied(without, strategies)
    for one in (without, cured):
        validate(one, ranks)
    return without, cured
