"""How much a command says beside its report, and in which colours."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distdoctor.cli import deliver
from distdoctor.cli.colour import console

Say = Callable[..., Any]
GOLDEN = Path(__file__).parents[1] / "recording" / "golden"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """What a real job left."""
    with tarfile.open(max(GOLDEN.glob("*/data.tar.xz"))) as archive:
        archive.extractall(tmp_path / "run", filter="data")
    return next((tmp_path / "run").rglob("*.trace")).parent


def test_verbose_gives_the_reasons_and_quiet_is_left_behind_by_the_next_command(say: Say, run_folder: Path) -> None:
    written = ("examine", run_folder, "-o", run_folder / "report.txt")
    usual, verbose, quiet, again = (say(*written, *option) for option in ([], ["-v"], ["-q"], []))

    assert "report written to" in usual.err
    assert "not examined: DD115 stuck-in-data: no stacks were taken" in verbose.err
    assert quiet.err == ""
    assert quiet.code == usual.code == 1
    assert again.err == usual.err


def test_colours_are_as_asked(say: Say, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    assert "\x1b[" in say("examine", run_folder, "--color", "always").out
    assert "\x1b[" not in say("examine", run_folder).out
    assert "\x1b[" not in say("examine", run_folder, "--color", "never").out


def test_places_in_files_that_are_there_are_links_where_there_are_colours(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    written = io.StringIO()

    console(written).print(f"DD112 error  rank 0  {tmp_path}/train.py:1 main  as gone.py:2 does", soft_wrap=True)

    assert f"file://{tmp_path}/train.py\x1b\\" in written.getvalue()
    assert "gone.py\x1b" not in written.getvalue()


def test_two_streams_into_one_file_or_pipe_have_one_reader(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    with (
        open(tmp_path / "log", "w") as log,
        open(tmp_path / "log", "a") as again,
        open(tmp_path / "other", "w") as other,
        os.fdopen(writes, "w") as pipe,
        os.fdopen(os.dup(writes), "w") as same_pipe,
    ):
        assert deliver.one_reader(log, again)
        assert deliver.one_reader(pipe, same_pipe)
        assert not deliver.one_reader(log, other)
        assert not deliver.one_reader(log, io.StringIO())
    os.close(reads)
