"""Single bits flipped in real traces: the damaged trace is named, and where nobody noted its checksum nothing is certain."""

from __future__ import annotations

from pathlib import Path

import flips
import pytest
from seeds import copy_of, run_folder

from distdoctor.diagnosis.finding import CERTAIN
from distdoctor.recording.trace.host_file import PATTERN

pytestmark = pytest.mark.job


@pytest.mark.parametrize("name", ["healthy", "non-finite"])
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "launcher killed"])
def test_a_flipped_bit_proves_nothing(
    name: str, sealed: bool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copy_of(run_folder(name, tmp_path_factory), tmp_path / "run")
    if not sealed:
        flips.unseal(folder)

    found = list(flips.flips(folder, range(12)))

    assert [one for one in found if one[2]] == []
    if sealed:
        assert {what for _, what, _ in found} == {"the damaged trace is named"}


def test_without_checksums_the_same_is_said_but_not_as_certain(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copy_of(run_folder("non-finite", tmp_path_factory), tmp_path / "run")
    sure = flips.examined(folder)
    flips.unseal(folder)

    found = flips.examined(folder)

    assert [(one.code, one.ranks) for one in found.findings] == [(one.code, one.ranks) for one in sure.findings]
    assert CERTAIN in {one.confidence for one in sure.findings}
    assert CERTAIN not in {one.confidence for one in found.findings}
    assert found.coverage is not None
    assert "ranks 0-1 left a trace of which no launcher noted a checksum" in found.coverage.gaps


def test_traces_that_were_copied_without_the_launchers_own_file_are_not_called_healthy(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copy_of(run_folder("healthy", tmp_path_factory), tmp_path / "run")
    for path in folder.glob(PATTERN):
        path.unlink()

    found = flips.examined(folder)

    assert found.coverage is not None
    assert found.coverage.gaps == (
        "ranks 0-1 left a trace of which no launcher noted a checksum",
        "nobody saw how the job ended",
    )
