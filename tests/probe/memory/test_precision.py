"""The precision of a step's matrix products is read off its graph, without unpacking or keeping anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from distdoctor.probe.memory import precision
from distdoctor.probe.memory.precision import note_full_precision
from distdoctor.recording.trace.events import FullPrecision, TraceEvent


class Notes:
    """Takes what would go onto the trace."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def note(self, event: TraceEvent, *, site: int = 0) -> None:
        self.events.append((event, site))


def loss(*, autocast: bool = False) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 32), nn.ReLU(), nn.Linear(32, 8))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return model(torch.randn(2, 1, 8, 8)).float().square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("autocast", "found"), [(False, {torch.float32}), (True, {torch.bfloat16})])
def test_what_the_products_keep_tells_their_precision(autocast: bool, found: set[torch.dtype]) -> None:
    root = loss(autocast=autocast)

    operands = list(precision._operands([root.grad_fn]))

    assert {one.dtype for one in operands} == found
    assert len(operands) >= 5  # weights and inputs of three layers; the first one's input needs no gradient
    root.backward()  # nothing was unpacked that backward needs


def test_products_in_fp32_on_a_device_are_noted_once_with_their_bytes_and_on_the_cpu_nothing_is() -> None:
    notes: Any = Notes()
    device = SimpleNamespace(name="NVIDIA A100", major=8, minor=0)
    note_full_precision(notes, [loss()], 7)
    assert notes.events == []

    operands = [mock.Mock(is_cuda=True, dtype=torch.float32, nbytes=100, data_ptr=lambda n=n: n % 2) for n in range(4)]
    with (
        mock.patch.object(precision, "_operands", return_value=operands),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=device),
    ):
        note_full_precision(notes, [], 7)
        operands[0].dtype = torch.bfloat16
        note_full_precision(notes, [], 7)

    assert notes.events == [(FullPrecision("NVIDIA A100", "ieee", 80, 200), 7)]
