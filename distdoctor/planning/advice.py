"""Which ways of training fit a machine, what each costs, and the largest batch that each can do. All of it predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from distdoctor.errors import CouldNotLook, WrongUse
from distdoctor.planning.machine import Machine, Speeds
from distdoctor.planning.memory_remedies import Strategies, with_strategy
from distdoctor.planning.prediction import NOT_PREDICTED, Prediction, Predictor
from distdoctor.workloads.request import TrainingRequest, validate

ADAMW_BYTES = 7 * 4
"""Read or written per parameter by a step in fp32: gradient, parameter, two moments; the last three in both directions."""
SHARD_TRIPS = 3
"""Times a shard crosses the host's link in a step with offload: to the device for forward and for backward, its gradient back."""
MOST_MICRO_STEPS = 64


@dataclass(frozen=True)
class Plan:
    """One way of training, with what it needs for the asked batch.

    `reason` says why it is not possible at all; then the numbers are zeros. `largest` is the largest global batch that fits with
    this plan's number of micro-steps, 0 where not even one sample per rank does.
    """

    request: TrainingRequest
    name: str
    prediction: Prediction | None = None
    largest: int = 0
    fits: bool = False
    compute_seconds: float = 0.0
    recompute_seconds: float = 0.0
    link_seconds: float = 0.0
    host_seconds: float = 0.0
    reason: str = ""

    @property
    def seconds(self) -> float:
        """Of one step, if nothing of it overlaps."""
        return self.compute_seconds + self.link_seconds + self.host_seconds


@dataclass(frozen=True)
class Advice:
    """The plans that fit, cheapest first, then the others, least memory first."""

    machine: Machine
    speeds: Speeds
    batch: int
    plans: tuple[Plan, ...]
    model: str
    parameters: int
    """Of the whole model."""
    notes: tuple[str, ...] = field(default=())

    @property
    def best(self) -> Plan | None:
        """The cheapest plan that fits."""
        return self.plans[0] if self.plans and self.plans[0].fits else None


def advise(
    request: TrainingRequest,
    machine: Machine,
    strategies: Strategies,
    *,
    speeds: Speeds | None = None,
    device: str = "cuda",
    tell: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Predict the ways of training this model with this batch on that machine. `tell` hears what is being predicted.

    CouldNotLook: the model cannot be predicted in any way. WrongUse: the batch does not divide among the devices.
    """
    speeds = speeds or Speeds()
    plans: list[Plan] = []
    known: dict[str, Predictor] = {}
    parameters = 0
    for name, candidate in candidates(request, machine.count, strategies):
        validate(candidate, machine.count)
        tell(f"predicting {name}")
        hopeless = _hopeless_without(candidate, plans, machine)
        if hopeless:
            plans.append(Plan(candidate, name, reason=hopeless))
            continue
        try:
            predictor = _predictor(candidate, machine, device, known)
            plan = _plan(name, candidate, predictor, machine, speeds, plans)
        except WrongUse as trouble:
            if not candidate.checkpoint_activations:
                raise
            plans.append(Plan(candidate, name, reason=str(trouble)))  # a model without blocks: one remedy less
            continue
        plans.append(plan)
        if plan.prediction is not None and not parameters:
            parameters = predictor.parameters
    if all(plan.reason for plan in plans):
        raise CouldNotLook(plans[0].reason, way_out=NOT_PREDICTED)
    if not any(plan.fits for plan in plans):
        tell("predicting smaller micro-batches")
        plans += _accumulating(plans, machine, speeds, device)
    ordered = sorted(plans, key=_order)
    return Advice(machine, speeds, request.batch_size, tuple(ordered), request.model, parameters)


def candidates(request: TrainingRequest, ranks: int, strategies: Strategies) -> Iterable[tuple[str, TrainingRequest]]:
    """The ways worth looking at, by name: what a person would try, one after the other."""
    plain = replace(request, offload=False, checkpoint_activations=False)
    again = replace(plain, checkpoint_activations=True)
    if ranks == 1:
        yield "single", with_strategy(plain, strategies["single"])
        yield "single + checkpoint-activations", with_strategy(again, strategies["single"])
    else:
        yield "ddp", with_strategy(plain, strategies["ddp"])
        yield "ddp + shard-optimizer", with_strategy(plain, strategies["ddp"], shard_optimizer=True)
        yield "ddp + checkpoint-activations", with_strategy(again, strategies["ddp"])
        yield "fsdp", with_strategy(plain, strategies["fsdp"])
        yield "fsdp + checkpoint-activations", with_strategy(again, strategies["fsdp"])
    yield "fsdp + offload", with_strategy(replace(plain, offload=True), strategies["fsdp"])
    yield "fsdp + offload + checkpoint-activations", with_strategy(replace(again, offload=True), strategies["fsdp"])


def _hopeless_without(request: TrainingRequest, others: list[Plan], machine: Machine) -> str:
    """Why recomputation cannot help: what is left when there are no activations is too much. "" where it may help."""
    for other in others if request.checkpoint_activations else ():
        same = replace(request, checkpoint_activations=False) == other.request
        if same and other.prediction and other.prediction.peak.state_bytes > machine.usable:
            return f"like {other.name}, whose parameters, gradients and optimizer state alone are too much"
    return ""


def _predictor(request: TrainingRequest, machine: Machine, device: str, known: dict[str, Predictor]) -> Predictor:
    """A predictor; with and without offload the same is allocated, only elsewhere."""
    same = replace(request, offload=False).to_json()
    shares = 1 if request.strategy == "single" else machine.count
    predictor = Predictor(request, machine.count, device=device, shares=shares, like=known.get(same))
    known.setdefault(same, predictor)
    return predictor


def _plan(
    name: str, request: TrainingRequest, predictor: Predictor, machine: Machine, speeds: Speeds, others: list[Plan]
) -> Plan:
    try:
        prediction = predictor.exactly(request.batch_size)
        hopeless = prediction.peak.state_bytes > machine.usable
        largest = 0 if hopeless else predictor.largest(machine.usable)
    except CouldNotLook as trouble:
        return Plan(request, name, reason=str(trouble))
    # Recomputation is what a step does more than the same step without it.
    plain = next(
        (o for o in others if o.prediction and o.request == replace(request, checkpoint_activations=False)), None
    )
    more = prediction.flops - plain.prediction.flops if plain and plain.prediction else prediction.recomputed_flops
    per_second = speeds.tflops(request.precision) * 1e12
    shard = prediction.parameter_bytes
    host = 0.0
    if request.offload:
        host = shard * SHARD_TRIPS / (speeds.host_link_gb * 1e9)
        host += shard / 4 * ADAMW_BYTES / (speeds.host_memory_gb * 1e9)
    return Plan(
        request,
        name,
        prediction,
        largest,
        fits=prediction.peak.bytes <= machine.usable,
        compute_seconds=prediction.flops / per_second,
        recompute_seconds=max(0, more) / per_second if request.checkpoint_activations else 0.0,
        link_seconds=prediction.sent_bytes / (speeds.link_gb * 1e9),
        host_seconds=host,
    )


def _accumulating(plans: list[Plan], machine: Machine, speeds: Speeds, device: str) -> list[Plan]:
    """The plans whose state fits, with just so many micro-steps that the rest does."""
    found: list[Plan] = []
    for plan in plans:
        if plan.prediction is None or plan.largest == 0:
            continue
        for steps in _divisors(plan.request.batch_size // _shares(plan, machine)):
            request = replace(plan.request, accumulate=steps * plan.request.accumulate)
            if steps == 1 or plan.request.batch_size // steps > plan.largest:
                continue
            predictor = Predictor(request, machine.count, device=device, shares=_shares(plan, machine))
            made = _plan(f"{plan.name} + accumulate {request.accumulate}", request, predictor, machine, speeds, plans)
            if made.fits:
                found.append(made)
                break
    return found


def _shares(plan: Plan, machine: Machine) -> int:
    return 1 if plan.request.strategy == "single" else machine.count


def _divisors(number: int) -> list[int]:
    return [steps for steps in range(1, min(number, MOST_MICRO_STEPS) + 1) if number % steps == 0]


def _order(plan: Plan) -> tuple[int, float, int]:
    if plan.prediction is None:
        return (2, 0.0, 0)
    if plan.fits:
        return (0, round(plan.seconds, 9), plan.prediction.peak.bytes)
    return (1, float(plan.prediction.peak.bytes), 0)


def require_known(batch: int, machine: Machine) -> None:
    """WrongUse where the batch has no whole number of samples for each device."""
    if batch % machine.count:
        raise WrongUse(
            f"a batch of {batch} samples does not divide among {machine.count} devices",
            way_out=f"Take a multiple of {machine.count}, such as --batch {max(1, batch // machine.count) * machine.count}.",
        )
