"""What surrounds a rank: each fact by itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from distdoctor.probe.context import Rank
from distdoctor.probe.progress import environment
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import ProbeTrouble
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run


def test_a_working_folder_that_is_gone_is_left_out_and_told_and_the_rank_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, gone = tmp_path / "run", tmp_path / "gone"
    folder.mkdir()
    gone.mkdir()
    rank = Rank(str(folder), ProbeSettings())
    trace = rank.trace = TraceWriter(str(folder), 0, 1, 0, 0)
    path = folder / "rank-00000.a0.json"
    monkeypatch.chdir(gone)
    gone.rmdir()

    rank.guarded(environment.write)(rank, trace, str(path))

    monkeypatch.chdir(tmp_path)
    assert not rank.silent
    found = json.loads(path.read_text())
    assert "cwd" not in found
    assert found["pid"] == os.getpid()
    recording = read_run(folder)
    (noted,) = recording.ranks[0].noted(ProbeTrouble)
    assert noted.what.startswith("environment: cwd is not known: FileNotFoundError")
    (trouble,) = recording.troubles
    assert trouble.silenced == {"environment"}


def test_a_recorder_without_words_for_its_trouble_tells_that_it_had_one(tmp_path: Path) -> None:
    trace = TraceWriter(str(tmp_path), 0, 1, 0, 0)
    trace.texts.id = None  # type: ignore[method-assign, assignment]

    trace.note_trouble("collectives: whatever")

    (noted,) = read_run(tmp_path).ranks[0].noted(ProbeTrouble)
    assert noted.reason == "it could not say why"
