"""Checkpoints that a thread writes while the optimizer changes what is written, and those that are whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import checkpoint as jobs
from jobs.replicas import watched
from sick import PLUGINS
from torch import nn

from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.probe.checkpoints.live_state import trained_in
from distdoctor.recording.trace.events import SavedAside
from distdoctor.testing import recording

CHECK = PLUGINS.checks["DD707"]
Save = tuple[
    str, int, int, int, int
]  # file, tensors that are live, place of the first, step at the begin and at the end


def told(*saves: Save) -> list[Finding]:
    made = recording(ranks=2).collective("all_reduce", [8], site="train.py:50 main")
    for name, live, first, step, done in saves:
        made.note(SavedAside(f"/ck/{name}", 9, live, first, step, done), 0, site="train.py:52 write")
    return CHECK.look(made.finished())


PARTS: tuple[Save, ...] = (("0.pt", 1, 1, 30, 30), ("1.pt", 1, 2, 31, 31), ("2.pt", 1, 3, 33, 33))


@pytest.mark.parametrize(("saves", "last"), [((("m.pt", 6, 1, 30, 32),), 32), (PARTS, 33)], ids=["one file", "parts"])
def test_a_thread_that_saves_what_the_optimizer_changes_is_told(saves: tuple[Save, ...], last: int) -> None:
    (finding,) = told(*saves)

    assert f"wrote tensors of steps 30 to {last} into one checkpoint" in finding.title
    assert (finding.ranks, finding.confidence, finding.place.line) == ((0,), LIKELY, 52)


@pytest.mark.parametrize(
    "saves",
    [
        (("m.pt", 6, 1, 30, 30),),  # waited for
        (("m.pt", 6, 1, 30, 30), ("n.pt", 6, 1, 40, 40)),  # two checkpoints
        (("a30.pt", 1, 1, 30, 30), ("a40.pt", 1, 1, 40, 40)),  # a history of one tensor
        (*PARTS[:1], ("1.pt", 1, 2, 30, 30)),  # parts of one step
    ],
)
def test_what_is_of_one_step_is_whole(saves: tuple[Save, ...]) -> None:
    assert told(*saves) == []


def test_a_tensor_is_live_where_it_lies_in_what_is_trained() -> None:
    model = nn.Linear(2, 2)
    trained = [model.weight, model.bias]

    assert trained_in(model.state_dict(), trained) == (2, 2)
    assert trained_in(model.bias.detach(), trained) == (1, 2)
    assert trained_in({"weight": model.weight.detach().clone()}, trained) == (0, 0)


@pytest.mark.job
@pytest.mark.parametrize("copies", [False, True])
def test_a_job_that_saves_in_a_thread(copies: bool, tmp_path: Path) -> None:
    recorded, _ = watched(jobs.saved_in_a_thread, ranks=1, folder=str(tmp_path), copies=copies)

    assert ["into one checkpoint" in one.title for one in CHECK.look(recorded)] == ([] if copies else [True])


@pytest.mark.job
@pytest.mark.parametrize("queued", [False, True], ids=["given", "queued"])
@pytest.mark.parametrize("copies", ["", "before", "inside", "bytes"])
def test_a_job_that_writes_a_format_of_its_own_in_a_thread(copies: str, queued: bool, tmp_path: Path) -> None:
    recorded, _ = watched(jobs.compressed_in_a_thread, ranks=1, folder=str(tmp_path), copies=copies, queued=queued)

    found = CHECK.look(recorded)

    assert ["into one checkpoint" in one.title for one in found] == ([] if copies else [True])
    assert all(
        "# of several steps" in recorded.sources[one.place.path].splitlines()[one.place.line - 1] for one in found
    )


@pytest.mark.job
def test_a_file_that_is_too_small_for_what_was_serialized_is_another_one(tmp_path: Path) -> None:
    recorded, _ = watched(jobs.compressed_in_a_thread, ranks=1, folder=str(tmp_path), copies="sent", queued=True)

    assert CHECK.look(recorded) == []
