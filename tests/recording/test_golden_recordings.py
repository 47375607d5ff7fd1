"""Real recordings of released layouts: the present one is read as on the day it was made, others are refused in a sentence.

Whoever changes the layout without raising its VERSION fails here, and makes new ones with `golden/make.py` after raising it.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import WARNING
from distdoctor.recording.trace.layout import HEADER, VERSION
from distdoctor.recording.trace.run_folder import read_run

GOLDEN = Path(__file__).parent / "golden"
ARCHIVES = sorted(GOLDEN.glob("*/*.tar.xz"))
PRESENT = [path for path in ARCHIVES if path.parent.name == str(VERSION)]
LARGEST_BYTES = 96 << 10  # of all that one layout has

# What is said of each, and how much was recorded: (codes, calls of rank 1, steps of rank 1).
VERDICTS = {
    "checkpoint": (("DD703",), 17, 6),
    "data": (("DD304",), 29, 12),
    "hang": (("DD101",), 13, 4),
    "memory": (("DD401",), 77, 36),
    "replicas": (("DD203",), 17, 6),
    "speed": (("DD123",), 77, 36),
}


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder


def test_the_present_layout_has_a_recording_of_every_family() -> None:
    assert {path.name.removesuffix(".tar.xz") for path in PRESENT} == VERDICTS.keys()
    assert sum(path.stat().st_size for path in PRESENT) < LARGEST_BYTES


@pytest.mark.parametrize("archive", PRESENT, ids=lambda path: path.name.partition(".")[0])
def test_a_golden_recording_is_judged_as_on_the_day_it_was_made(archive: Path, tmp_path: Path) -> None:
    recording = read_run(unpacked(archive, tmp_path))

    diagnosis = examine(recording, PLUGINS.checks.values())

    assert recording.troubles == ()
    codes = tuple(sorted({finding.code for finding in diagnosis.at_least(WARNING)}))
    log = recording.ranks[1]
    assert (codes, len(log.calls), len(log.steps)) == VERDICTS[archive.name.partition(".")[0]]


def another_layout(folder: Path, version: int) -> int:
    """The recording in `folder` as if another distdoctor had written it."""
    for trace in folder.glob("*.trace"):
        with trace.open("r+b") as file:
            file.seek(HEADER.offsets["version"])
            file.write(version.to_bytes(4, "little"))
    return version


@pytest.mark.parametrize("step", [-1, 1])
def test_a_recording_of_another_layout_is_refused_in_a_sentence(step: int, tmp_path: Path) -> None:
    version = another_layout(unpacked(PRESENT[0], tmp_path), VERSION + step)

    troubles = read_run(tmp_path).troubles

    assert len(troubles) == 2
    assert all(f"layout {version}, this one reads {VERSION}" in trouble.what for trouble in troubles)
