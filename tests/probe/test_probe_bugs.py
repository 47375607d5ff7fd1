"""A bug in the probe, wherever it is, changes no result and raises nothing into the training."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import run_ranks, values
from jobs.probe_bugs import told, train

from distdoctor.probe.checkpoints.paths import absolute


@pytest.mark.job
def test_a_probe_of_which_everything_breaks_changes_nothing(tmp_path: Path) -> None:
    """At the start, in the first steps, and later. `benchmarks/probe_bugs.py` does it one function at a time."""
    ((plain, _),) = values(run_ranks(train, 1, str(tmp_path), None, join=False))
    for from_call in (1, 2, 4, 9):
        folder = tmp_path / f"from-{from_call}"
        folder.mkdir()

        ((broken, calls),) = values(run_ranks(train, 1, str(folder), from_call, join=False))

        assert broken == plain
        assert calls
        assert told(str(folder))[0]


@pytest.mark.job
def test_ranks_whose_probes_all_break_train_together_as_before(tmp_path: Path) -> None:
    """Streams of data, a scaler, gathers, copies of the model, and looks in depth: what one rank alone does not show."""
    ((plain, _), (others, _)) = values(run_ranks(train, 2, str(tmp_path), None, join=False))
    folder = tmp_path / "broken"
    folder.mkdir()

    broken = values(run_ranks(train, 2, str(folder), 3, join=False))

    assert [digest for digest, _ in broken] == [plain, others]
    assert all(calls for _, calls in broken)
    assert told(str(folder))[0]


BROKEN = {
    "checkpoints": "checkpoints.paths:absolute,_begins_aside,writer:Texts.id,environment:_device_count,"
    "watch_end.at_exit,optimizer_steps:_prepares,ModuleTrees._parameter,ModuleTrees._child",
    "alone": "generators:_entries,generators:drawn_from,Slots.place,Slots.watch,Slots._look,holders:_length,HolderScan._unit,"
    "HolderScan._of_class",  # what looks at things one by one, and what workers do
    "watched": "start:start_here,start:watch_models,start:recorded_in,start:phase_marks",  # what the program asks by name
}


@pytest.mark.job
@pytest.mark.parametrize("training", BROKEN)
def test_a_bug_in_one_function_is_told_and_changes_neither_result_nor_exit_code_nor_standard_error(
    tmp_path: Path, training: str
) -> None:
    """A few of the functions that `benchmarks/probe_bugs.py` goes through."""
    sweep = Path(__file__).parents[2] / "benchmarks" / "probe_bugs.py"
    results = tmp_path / "results"
    command = [
        sys.executable,
        str(sweep),
        "--training",
        training,
        "--only",
        BROKEN[training],
        "--results",
        str(results),
        "--sample",  # of signals, which strike one in a job
        "4",
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stdout + done.stderr
    count = len(BROKEN[training].split(","))
    struck = -(-count // 4)
    rows = [f"| {kind} | {count} | 0 | {told} |" for kind, told in (("error", "0"), ("memory", "0"), ("slow", "-"))]
    assert done.stdout.splitlines()[-4:] == [*rows, f"| interrupt | {struck} | 0 | - |"]
    assert len(results.read_text().splitlines()) == 3 * count + struck


class Nameless(io.BytesIO):
    @property
    def name(self) -> str:
        raise RuntimeError("nobody asks me")


def test_the_path_of_a_file_that_tells_none_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert absolute(Nameless()) == ""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert absolute("saved.pt") == ""
    assert absolute("/saved.pt") == f"{os.sep}saved.pt"
