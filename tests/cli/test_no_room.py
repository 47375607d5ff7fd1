"""Output that has no room is said so, and half of it is not left behind."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distdoctor.cli.deliver import put
from distdoctor.errors import WrongUse


@pytest.fixture
def no_room() -> Iterator[None]:
    """Files may be sixteen bytes long."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("no_room")
def test_half_a_report_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"report\.json cannot be written: File too large"):
        put(b"x" * 100, tmp_path / "report.json")

    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_room")
def test_a_file_that_was_there_is_not_taken_away(tmp_path: Path) -> None:
    (kept := tmp_path / "report.json").write_text("older")
    with pytest.raises(WrongUse):
        put(b"x" * 100, kept)

    assert kept.exists()


def test_a_standard_output_without_room_is_no_damaged_file() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-u", "-m", "distdoctor", "explain", "DD101"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert done.returncode == 5
    assert done.stderr.splitlines()[0] == "distdoctor: the output cannot be written: No space left on device"
