"""Many small models in one job, and one flipped bit in each: in a weight, a gradient or the optimizer's memory of one rank."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.plugins import load
from jobs.replicas import watched

DTYPES = {"float32": (torch.float32, 32), "float64": (torch.float64, 64), "bfloat16": (torch.bfloat16, 16)}
NAMES = ("body.weight", "body.bias", "head.weight", "head.bias")
SIZES = {"body.weight": 6 * 5, "body.bias": 6, "head.weight": 3 * 6, "head.bias": 3}
STEPS = 4
_WORDS = {16: torch.int16, 32: torch.int32, 64: torch.int64}


@dataclass(frozen=True)
class Flip:
    """One flipped bit: of a `weight` after step `at`, a `grad` before it, or the `state` (exp_avg) after it."""

    model: int
    dtype: str
    where: str
    who: int
    at: int
    name: str
    element: int
    bit: int

    @property
    def seen_in_step(self) -> int:
        return self.at if self.where == "grad" else self.at + 1


def flips(count: int, ranks: int, seed: int = 0) -> list[Flip]:
    """One for each of `count` models, drawn evenly over everything."""
    rng = random.Random(seed)
    found = []
    for model in range(count):
        dtype, where, name = rng.choice(list(DTYPES)), rng.choice(("weight", "grad", "state")), rng.choice(NAMES)
        at = rng.randrange(1, STEPS)
        who, element, bit = rng.randrange(ranks), rng.randrange(SIZES[name]), rng.randrange(DTYPES[dtype][1])
        found.append(Flip(model, dtype, where, who, at, name, element, bit))
    return found


class Small(nn.Module):
    """Two layers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.body = nn.Linear(5, 6, dtype=dtype)
        self.head = nn.Linear(6, 3, dtype=dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(inputs.to(self.body.weight.dtype)).tanh())
        return scores.double()


class Many(nn.Module):
    """Models that have nothing to do with one another."""

    def __init__(self, dtypes: Sequence[str]) -> None:
        super().__init__()
        self.models = nn.ModuleList(Small(DTYPES[dtype][0]) for dtype in dtypes)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        return [model(inputs) for model in self.models]


def turn_over(tensor: Tensor, element: int, bit: int, width: int) -> None:
    """Flip one bit of one element in place."""
    mask = 1 << bit if bit < width - 1 else -(1 << (width - 1))
    with torch.no_grad():
        words = tensor.detach().view(-1).view(_WORDS[width])
        words[element] = words[element] ^ mask


def many_flips(rank: int, world_size: int, *, planted: Sequence[Flip]) -> int:
    """Train all models side by side; each has an optimizer of its own. Returns how many bits this rank flipped."""
    many = Many([flip.dtype for flip in planted])
    model = DistributedDataParallel(many)
    optimizers = [torch.optim.Adam(small.parameters(), lr=1e-3) for small in many.models]
    generator = torch.Generator().manual_seed(rank)
    done = 0
    for step in range(1, STEPS + 1):
        model.zero_grad()
        sum(scores.square().mean() for scores in model(torch.randn(4, 5, generator=generator))).backward()
        for flip, small, optimizer in zip(planted, many.models, optimizers, strict=True):
            here, parameter = flip.who == rank and flip.at == step, small.get_parameter(flip.name)
            width = DTYPES[flip.dtype][1]
            if here and flip.where == "grad":
                turn_over(parameter.grad, flip.element, flip.bit, width)
            optimizer.step()
            if here and flip.where == "weight":
                turn_over(parameter, flip.element, flip.bit, width)
            if here and flip.where == "state":
                turn_over(optimizer.state[parameter]["exp_avg"], flip.element, flip.bit, width)
            done += here
    return done


@dataclass(frozen=True)
class Found:
    """What was said about one flip: whether anything, and whether step, rank, parameter and bit are right."""

    flip: Flip
    seen: bool
    step: bool
    rank: bool
    parameter: bool
    bit: bool | None  # None: nobody can tell it, after an optimizer has worked with it
    code: str

    @property
    def right(self) -> bool:
        return self.seen and self.step and self.rank and self.parameter and self.bit is not False


def plant(planted: Sequence[Flip], ranks: int) -> list[Found]:
    """Run one job with all these flips, and hold what is found against what was planted."""
    recording, done = watched(many_flips, ranks=ranks, streams="collectives,gradients,samples", planted=planted)
    assert sum(done) == len(planted)
    checks = [check for check in load().checks.values() if check.code.startswith("DD2")]
    by_optimizer = {int(str(one.evidence.get("optimizer", 0))): one for one in examine(recording, checks).findings}
    return [_judged(flip, by_optimizer) for flip in planted]


def _judged(flip: Flip, by_optimizer: Mapping[int, Finding]) -> Found:
    finding = by_optimizer.get(flip.model + 1)
    if finding is None:
        return Found(flip, seen=False, step=False, rank=False, parameter=False, bit=None, code="")
    names = finding.evidence.get("parameters")
    expected = f"models.{flip.model}.{flip.name}"
    width = DTYPES[flip.dtype][1]
    per_word = 64 // width
    bit = flip.bit + flip.element % per_word * width
    said = finding.evidence.get("bit")
    return Found(
        flip,
        seen=True,
        step=finding.evidence.get("step") == flip.seen_in_step,
        rank=finding.ranks == (flip.who,),
        parameter=names == [expected],
        bit=None if said is None else f"bit {bit % width} " in str(said) or f"bit {bit} " in str(said),
        code=finding.code,
    )
