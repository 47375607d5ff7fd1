"""Parts of one checkpoint in folders that each rank has named by itself, and folders that are meant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.finding import LIKELY
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Saving
from distdoctor.testing import recording

CHECK = PLUGINS.checks["DD707"]
DONE = 1_001_000_000_000


def saved(paths: tuple[str, ...], together: bool = True) -> Recording:
    made = recording(ranks=len(paths))
    if together:
        made.collective("all_reduce", [8], site="train.py:50 save")
    for rank, path in enumerate(paths):
        made.note(Saving(path, "torch.save", 8, DONE), rank, site="train.py:52 save")
    return made.finished()


SICK = [
    ("/r/2026-11-23/12-00-05_a/step8/optim_rank0.pt", "/r/2026-11-23/12-00-04_a/step8/optim_rank1.pt", "clock"),
    ("/r/2026-11-23-23-59-59/0.pt", "/r/2026-11-24-00-00-01/1.pt", "clock"),
    ("/r/run1790000000.123456/part-00.pt", "/r/run1790000001.654321/part-01.pt", "clock"),
    (
        "/r/0f8fad5b-d9cb-469f-a165-70867728950e/shard0.pt",
        "/r/7c9e6679-7425-40de-944b-e07fc1f90ae7/shard1.pt",
        "random word",
    ),
]


@pytest.mark.parametrize(("one", "other", "named_by"), SICK)
def test_parts_in_folders_named_by_each_rank_are_told(one: str, other: str, named_by: str) -> None:
    (finding,) = CHECK.look(saved((one, other)))
    assert finding.title == "ranks 0-1 wrote their parts of one checkpoint into 2 folders: no folder holds all parts"
    assert (finding.ranks, finding.confidence, finding.place.short) == ((0, 1), LIKELY, "train.py:52")
    assert named_by in str(finding.evidence["named_by"])


@pytest.mark.parametrize(
    "paths",
    [
        ("/r/12-00-04/optim_rank0.pt", "/r/12-00-04/optim_rank1.pt"),  # one folder
        ("/r/rank0/optim_rank0.pt", "/r/rank1/optim_rank1.pt"),  # named by the rank
        ("/r/12-00-05/model.pt", "/r/12-00-04/model.pt"),  # a whole checkpoint in each
        ("/r/lr0.1/optim_rank0.pt", "/r/lr0.2/optim_rank1.pt"),  # a population
        ("/r/02-00-05/optim_rank0.pt", "/r/12-00-04/optim_rank1.pt"),  # no clocks of one start
    ],
)
def test_folders_that_are_meant_are_not(paths: tuple[str, ...]) -> None:
    assert CHECK.look(saved(paths)) == []


def test_trials_that_call_no_collective_together_are_jobs_of_their_own() -> None:
    assert CHECK.look(saved(SICK[0][:2], together=False)) == []


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ('name = f"{tag}-{time.time_ns()}"', 2),
        ('name = datetime.now().strftime("%H-%M-%S")', 2),
        ("name = tag", None),
        ('log.info(f"took {time.time() - began}")', None),
        ('print(f"it is {time.time()}")', None),
    ],
)
def test_the_line_that_makes_a_name_of_the_clock_is_shown(made: str, line: int | None) -> None:
    source = f"def run_name(tag):\n    {made}\n    return name\n"
    (finding,) = CHECK.look(replace(saved(SICK[0][:2]), sources={"/job/train.py": source}))

    assert [p.site.line for p in finding.places if p.role == "makes a name of its own clock"] == (
        [line] if line else []
    )
