"""Parts of the gradients stream work without the stream: each gets the shared context and the siblings that it needs."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from distdoctor.probe.context import Rank
from distdoctor.probe.gradients.beside import AMBUSHES, LARGEST, PATIENCE, Beside, Lead
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.inventory import take_inventory
from distdoctor.probe.gradients.reduced_in_place import Reductions
from distdoctor.probe.gradients.sampled_elements import SampledElements
from distdoctor.probe.gradients.zero_grad import Zeroing
from distdoctor.probe.writer import TraceWriter, file_name
from distdoctor.recording.trace.events import BesideUsed, DetachedGather, decode
from distdoctor.recording.trace.layout import STREAMS
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.reader import read_trace


def context_in(folder: Path) -> GradientsContext:
    trace = TraceWriter(str(folder), 0, 1, 0, 0, STREAMS)
    return GradientsContext(Rank(str(folder), ProbeSettings()), trace, deep=False)


def test_elements_are_sampled_as_they_were_computed_and_as_they_are_used(tmp_path: Path) -> None:
    context, model = context_in(tmp_path), nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parameters = list(model.parameters())
    inventory = take_inventory(context, 1, optimizer, parameters)
    elements = SampledElements(context, inventory, parameters, lambda: True)

    model(torch.ones(2, 8)).sum().backward()
    assert elements.accumulated
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad /= 2
    elements.write(parameters, step=1)

    rows = read_trace(tmp_path / file_name(0, 0)).rows["spots"]
    assert len(rows) == 2
    assert all(float(row["own_0"]) == 2 * float(row["used_0"]) != 0 for row in rows)


def steps_of(folder: Path, last: int, frozen_from: int = 0) -> tuple[SampledElements, list[nn.Parameter], list[int]]:
    """The elements of a layer that trains for so many steps, its parameters, and the step of each row that was written. Its bias
    is frozen from a step on."""
    context, model = context_in(folder), nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parameters = list(model.parameters())
    elements = SampledElements(context, take_inventory(context, 1, optimizer, parameters), parameters, lambda: True)
    for step in range(1, last + 1):
        model(torch.ones(2, 8)).sum().backward()
        if step <= 8:
            elements.write(parameters, step)
        elements.write_later(lambda: parameters, step)
        elements.accumulated = False
        model.bias.requires_grad_(not frozen_from or step + 1 < frozen_from)
        elements.prepare(step + 1, lambda: parameters)
    return elements, parameters, [int(row["step"]) for row in read_trace(folder / file_name(0, 0)).rows["spots"]]


def test_elements_are_sampled_again_in_three_steps_from_each_power_of_two_on(tmp_path: Path) -> None:
    elements, parameters, steps = steps_of(tmp_path, 39)

    assert sorted({*steps}) == [*range(1, 11), 16, 17, 18, 32, 33, 34]
    assert not elements.accumulated  # what else is said of a backward rests on the first steps
    assert all(len(one._post_accumulate_grad_hooks or ()) == 0 for one in parameters)


def test_what_was_frozen_since_has_no_elements_later(tmp_path: Path) -> None:
    *_, steps = steps_of(tmp_path, 17, frozen_from=12)

    assert [steps.count(step) for step in (8, 16, 17)] == [2, 1, 1]


def test_calls_of_zero_grad_are_counted_by_optimizer(tmp_path: Path) -> None:
    zeroing = Zeroing(context_in(tmp_path))
    one, other = (torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1) for _ in range(2))

    zeroing._of_optimizer(one)
    zeroing._of_module(nn.Linear(1, 1))

    assert (zeroing.calls(one), zeroing.calls(other)) == (2, 1)


def test_what_a_device_has_not_computed_is_written_later_and_in_order(tmp_path: Path) -> None:
    class Late:
        there = False

        def ready(self) -> bool:
            return self.there

    context, late, written = context_in(tmp_path), Late(), []
    context.later(lambda: written.append("first"), late)  # type: ignore[arg-type]
    context.later(lambda: written.append("second"))
    context.write_what_is_ready()
    assert written == []

    late.there = True
    context.write_what_is_ready()

    assert written == ["first", "second"]


def summed(reductions: Reductions, tensor: torch.Tensor) -> None:
    """As if this process were one of two ranks, whose sum doubles what it is given."""
    if tensor.requires_grad:
        reductions.summed(tensor, (0, 1))
    tensor.data.mul_(2)


def told_of(folder: Path) -> list[DetachedGather]:
    trace = read_trace(folder / file_name(0, 0))
    rows = trace.rows["events"]
    return [decode(DetachedGather, row.item(), trace.texts) for row in rows[rows["kind"] == DetachedGather.number]]


def test_a_sum_in_place_is_noted_where_the_loss_depends_on_it_and_nothing_is_kept_alive(
    tmp_path: Path,
) -> None:
    context = context_in(tmp_path)
    reductions = Reductions(context, lambda: False)
    part = torch.ones(3, requires_grad=True) * 3

    summed(reductions, part)
    loss = part.pow(2).sum()
    reductions.backward_begins(loss)
    (noted,) = told_of(tmp_path)
    assert (noted.operation, noted.ranks, noted.nbytes, noted.step) == ("all_reduce", (0, 1), 12, 1)

    other = torch.ones(3, requires_grad=True) * 3
    alive = weakref.ref(other)
    summed(reductions, other)
    del other
    assert alive() is None


@pytest.mark.parametrize("how", ["alone", "beside", "used before as well", "views"])
def test_whether_the_loss_depends_on_what_is_trained_through_the_sum_alone_is_noted(how: str, tmp_path: Path) -> None:
    reductions = Reductions(context_in(tmp_path), lambda: False)
    weight = torch.ones(3, 3, requires_grad=True)
    part = weight * 3
    before = part.pow(2).sum()

    summed(reductions, part)
    diagonal = torch.diagonal(part).add_(-1).pow_(2).sum() if how == "views" else 0
    after = diagonal + part.flatten()[:-1].pow(2).sum()
    loss = after + {"beside": weight.sum(), "used before as well": before}.get(how, torch.zeros(()))
    reductions.backward_begins(loss)

    (noted,) = told_of(tmp_path)
    assert (noted.only, noted.loss) == (how in ("alone", "views"), float(loss.detach()))


@pytest.mark.parametrize("how", ["used before", "linear", "one number", "made up for", "detached"])
def test_a_sum_in_place_that_the_gradient_does_not_miss_is_not_noted(how: str, tmp_path: Path) -> None:
    context = context_in(tmp_path)
    reductions = Reductions(context, lambda: False)
    part = torch.ones(1 if how == "one number" else 3, requires_grad=True) * 3
    before = part.pow(2).sum()

    summed(reductions, part.detach() if how == "detached" else part)
    after = part.sum() if how == "linear" else part.pow(2).sum() * (2 if how == "made up for" else 3)
    reductions.backward_begins(before if how == "used before" else after)

    assert told_of(tmp_path) == []


class Shift(nn.Module):
    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs - self.mean


def test_another_optimizer_leads_when_the_first_one_has_stopped_and_goes_on_counting() -> None:
    lead = Lead()
    updates = 0
    for step in range(1, 6):
        updates += 1
        assert lead.takes(1, step, updates)
    taken = [lead.takes(2, step, updates + step) for step in range(1, PATIENCE + 4)]

    assert taken == [False] * PATIENCE + [True] * 3
    assert lead.step == PATIENCE + 3
    assert not lead.takes(1, 6, updates + PATIENCE + 4)


def test_modules_of_buffers_are_looked_at_until_they_are_gone_and_setting_a_buffer_costs_nothing_later(
    tmp_path: Path,
) -> None:
    context = context_in(tmp_path)
    beside = Beside(context)
    hooks = nn.modules.module._global_buffer_registration_hooks
    before = len(hooks)
    beside.install()
    shift, other, large, layer = Shift(), Shift(), Shift(LARGEST + 1), nn.BatchNorm1d(4)
    assert beside.lead.takes(1, step=1, updates=1)
    beside.look()
    assert len(hooks) == before
    beside.after_step()
    with torch.no_grad():
        other(torch.ones(2, 4))
    shift(torch.ones(2, 4))
    beside.after_step()
    gone = weakref.ref(shift)
    del shift
    assert gone() is None
    assert beside.lead.takes(1, step=2, updates=2)
    beside.look()
    for _ in range(AMBUSHES):
        beside.after_step()
    assert not nn.modules.module._global_forward_hooks

    trace = read_trace(tmp_path / file_name(0, 0))
    tensors = {int(row["seq"]): (trace.texts[int(row["name"])], int(row["optimizer"])) for row in trace.rows["tensors"]}
    assert tensors == {1: ("Shift.mean", 0), 2: ("Shift 2.mean", 0)}
    assert [(int(row["step"]), int(row["tensor"])) for row in trace.rows["digests"]] == [(1, 1), (1, 2), (2, 2)]
    noted = [
        decode(BesideUsed, row.item(), trace.texts) for row in trace.rows["events"] if row["kind"] == BesideUsed.number
    ]
    assert [(one.name, one.no_grad) for one in noted] == [("Shift 2", True), ("Shift", False)]
    assert (large.mean.numel(), layer.num_features) == (LARGEST + 1, 4)  # neither of which is looked at
