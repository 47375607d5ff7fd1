"""Each example shows the illness that its README names, and its healthy twin is silent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_drills import run

pytestmark = pytest.mark.job
EXAMPLES = Path(__file__).parent.parent / "examples"
ILLNESSES = dict(
    re.findall(r"^\| `(\w+\.py)` \| .* \| (DD\d+) \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
)


def test_every_script_is_in_the_table_or_is_a_twin() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}

    assert scripts == set(ILLNESSES) | {name.replace(".py", "_healthy.py") for name in ILLNESSES}


@pytest.mark.parametrize(("script", "code"), ILLNESSES.items())
def test_an_example_is_found(script: str, code: str, tmp_path: Path) -> None:
    _, report = run(tmp_path / "run", "--nproc", "2", str(EXAMPLES / script))

    assert report["findings"][0]["code"] == code
    assert report["findings"][0]["place"]["path"] == str(EXAMPLES / script)


@pytest.mark.parametrize("script", ILLNESSES)
def test_its_healthy_twin_is_silent(script: str, tmp_path: Path) -> None:
    _, report = run(tmp_path / "run", "--nproc", "2", str(EXAMPLES / script.replace(".py", "_healthy.py")))

    # torch 2.15's gloo sometimes aborts a rank that ends right after destroy_process_group; that is not the script's illness.
    assert [f["code"] for f in report["findings"] if f["code"] != "DD110"] == []
