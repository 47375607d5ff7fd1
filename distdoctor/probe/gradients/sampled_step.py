"""One step that is looked at: everything that is being computed about its tensors, until it can be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from distdoctor.probe.gradients.inputs import Given
from distdoctor.probe.gradients.inventory import Inventory
from distdoctor.probe.tensors.digests import Reading, finished_all
from distdoctor.recording.trace.layout import MASK, UpdateFlag, extend


class TensorRow(NamedTuple):
    """What is written about one tensor."""

    grad: int
    before: int
    param: int
    state: int
    grad_sum: int
    param_sum: int
    norm: float
    state_before: int


@dataclass
class SampledStep:
    """One step that is looked at, while a device may still be computing what was seen."""

    inventory: Inventory
    step: int
    flags: int
    fields: dict[str, Any]
    kinds: list[int]
    held: list[bool]
    grads: tuple[Reading, list[int]]
    params: tuple[Reading, list[int]]
    norms: Reading
    before: Reading | None = None
    state: Reading | None = None
    owners: Sequence[int] = ()
    state_before: Reading | None = None
    owners_before: Sequence[int] = ()
    inputs: Given | None = None

    def rows(self) -> list[TensorRow]:
        """One for each tensor; asked once everything is ready."""
        kinds, states = self.kinds, self._by_owner(self.state, self.owners)
        states_before = self._by_owner(self.state_before, self.owners_before)
        before = self.before if self.before is not None else self.params[0]
        befores = finished_all(before, kinds) if self.before is not None else [0] * len(kinds)
        grads = finished_all(self.grads[0], kinds)
        grads = [grad if held else 0 for grad, held in zip(grads, self.held, strict=True)]
        sums = [[raw & MASK for raw in reading.values(1)] for reading in (self.grads[0], before)]
        columns = (grads, befores, finished_all(self.params[0], kinds), states, *sums, self.norms.values())
        return [TensorRow(*values) for values in zip(*columns, states_before, strict=True)]

    def _by_owner(self, state: Reading | None, owners: Sequence[int]) -> list[int]:
        """One digest for each parameter, of everything that the optimizer keeps for it."""
        found = [0] * len(self.kinds)
        for owner, raw in zip(owners, state.values() if state is not None else (), strict=True):
            found[owner] = extend(found[owner], raw & MASK)
        return found


@dataclass
class GroupDigests:
    """The digests of all tensors that the same ranks should agree on."""

    grads: int = 0
    params: int = 0
    state: int = 0
    held: int = 0
    non_finite: int = 0

    def take_param(self, row: TensorRow) -> None:
        self.params, self.state = extend(self.params, row.param), extend(self.state, row.state)

    def take_grad(self, row: TensorRow, held: bool, broken: bool) -> None:
        self.grads = extend(self.grads, row.grad)
        self.held += held
        self.non_finite += broken

    def fields(self, look: SampledStep) -> dict[str, int]:
        state = self.state if look.flags & UpdateFlag.STATE else 0
        return {
            "grads": self.grads,
            "params": self.params,
            "state": state,
            "held": self.held,
            "non_finite": self.non_finite,
        }
