"""check-grads on the command line: the verdict by layer, and the comparison with one process as a finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Finished

pytestmark = pytest.mark.job
Run = Callable[..., Finished]


def test_a_wrong_factor_is_a_finding_of_the_ordinary_report(distdoctor: Run) -> None:
    words = ["--steps", 3, "--fire-drill", "mis-scaled-reduction", "--against", "single", "--output-format", "json"]

    done = distdoctor("check-grads", "--strategy", "ddp", "--nproc", 2, "--no-evaluate", *words)

    (finding,) = [one for one in done.document["findings"] if one["code"] == "DD213"]
    assert (finding["severity"], finding["confidence"], finding["ranks"]) == ("error", "certain", [0, 1])
    assert finding["evidence"]["factor"] == pytest.approx(0.5)
    assert finding["evidence"]["likely"] == "1/2: gradients are divided by the number of ranks twice"
    assert (finding["evidence"]["different"], finding["evidence"]["compared"]) == (42, 42)
    assert finding["remedies"][0]["slug"] == "match-the-baseline"
    assert "differ by the factor 1/2" in done.err
    assert done.folder is not None
    assert (done.folder / "comparison.json").exists()
    assert done.code == 1


def test_a_script_cannot_be_compared_and_is_not_even_started(distdoctor: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')\n")

    done = distdoctor("check-grads", "--nproc", 2, "--against", "single", "train.py")

    assert done.code == 2
    assert "--against single needs a reference training" in done.err
    assert not (tmp_path / "started").exists()
