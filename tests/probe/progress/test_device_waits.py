"""Lines that wait for the device are seen in a window of a few steps, and torch is as it was afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distdoctor.probe.context import Rank
from distdoctor.probe.progress.device_waits import FIRST, METHODS, STEPS, DeviceWaits
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import DeviceWait
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run


class OnDevice(torch.Tensor):
    """A tensor that says it is on a device."""

    is_cuda = True  # type: ignore[assignment]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    found = Rank(str(tmp_path), ProbeSettings(frozenset({"progress"})))
    found.trace = TraceWriter(str(tmp_path), 0, 1, 0, 0)
    return found


def train(waits: DeviceWaits, loss: torch.Tensor, steps: int) -> list[float]:
    seen = []
    for step in range(1, steps + 1):
        seen.append(loss.item())  # waits
        waits.stepped(step)
    return seen


def noted(folder: Path) -> list[tuple[str, int, int, int]]:
    log = read_run(folder).ranks[0]
    return [(wait.by, wait.site.line, wait.times, wait.steps) for wait in log.noted(DeviceWait)]


def test_a_line_that_waits_in_each_step_is_noted_once(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    loss = torch.tensor(2.5).as_subclass(OnDevice)

    seen = train(DeviceWaits(rank), loss, FIRST + STEPS + 4)

    assert seen == [2.5] * (FIRST + STEPS + 4)
    lines = Path(__file__).read_text("utf-8").splitlines()
    ((by, line, times, steps),) = noted(tmp_path)
    assert (by, times, steps) == ("item", STEPS, STEPS)
    assert "# waits" in lines[line - 1]


def test_torch_is_given_back_as_it_was(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: vars(torch.Tensor).get(name) for name in METHODS} | {"synchronize": torch.cuda.synchronize}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    train(DeviceWaits(rank), torch.tensor(2.5), FIRST + STEPS)

    after = {name: vars(torch.Tensor).get(name) for name in METHODS} | {"synchronize": torch.cuda.synchronize}
    assert after == before
    assert noted(tmp_path) == []  # the tensor was the CPU's


def test_without_a_device_nothing_is_wrapped(rank: Rank) -> None:
    waits = DeviceWaits(rank)
    train(waits, torch.tensor(2.5), FIRST + 1)
    assert not waits.closers
