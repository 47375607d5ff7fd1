"""Checkpoints, evaluations and compilations are known as such while they last, in one record for each kind."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.diagnosis.hang.silence import open_phase
from distdoctor.probe import wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.progress import phases
from distdoctor.probe.samples.eval_mode import Modes
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import LongPhase
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    found = Rank(str(tmp_path), ProbeSettings(frozenset({"progress", "samples"})))
    found.trace = TraceWriter(str(tmp_path), 0, 1, 0, 0)
    phases.install(found)
    Modes().install(found)
    yield found
    wrappers.remove_all()


def phase_in(folder: Path) -> str:
    return open_phase(Timeline(read_run(folder).ranks[0]))


class Watched(io.BytesIO):
    """A file that looks what phase its writer is in."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.phases = folder, set[str]()

    def write(self, data: Any) -> int:
        self.phases.add(phase_in(self.folder))
        return super().write(data)


def test_a_rank_that_saves_is_in_a_checkpoint_until_it_has_saved(rank: Rank, tmp_path: Path) -> None:
    file = Watched(tmp_path)

    for _ in range(3):
        torch.save({"weight": torch.ones(3)}, file)

    assert file.phases == {"checkpoint"}
    assert phase_in(tmp_path) == ""
    assert len(list(read_run(tmp_path).ranks[0].noted(LongPhase))) == 1


def test_a_checkpoint_that_fails_fails_as_without_us_and_is_over(rank: Rank, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "none.pt")

    assert phase_in(tmp_path) == ""


def test_saving_in_another_thread_is_no_phase_of_the_rank(rank: Rank, tmp_path: Path) -> None:
    file = Watched(tmp_path)
    thread = threading.Thread(target=torch.save, args=({"weight": torch.ones(3)}, file))
    thread.start()
    thread.join()

    assert file.phases == {""}


def test_a_model_in_eval_mode_evaluates_until_it_trains_again(rank: Rank, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model.train()
    assert phase_in(tmp_path) == ""

    model.eval()
    assert phase_in(tmp_path) == "evaluation"
    model.train()

    assert phase_in(tmp_path) == ""


def test_a_compilation_is_known_while_it_lasts(rank: Rank, tmp_path: Path) -> None:
    seen = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(phase_in(tmp_path))
        return graph.forward

    compiled = torch.compile(lambda x: x * 2, backend=backend)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))

    assert seen == ["compile"]
    assert phase_in(tmp_path) == ""
